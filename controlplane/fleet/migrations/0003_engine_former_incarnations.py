import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('fleet', '0002_pair_fenced'),
    ]

    operations = [
        migrations.AddField(
            model_name='engine',
            name='former_incarnations',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=200), blank=True, default=list, help_text='The last ones that are known to be gone, newest first; peers are told that their KV is lost.', size=None),
        ),
    ]
