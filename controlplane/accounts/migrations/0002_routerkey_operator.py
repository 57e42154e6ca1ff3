from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0001_initial'),
    ]

    operations = [
        migrations.AddField(
            model_name='routerkey',
            name='operator',
            field=models.BooleanField(default=False, help_text='Routers tell its holder how turns were placed.'),
        ),
    ]
