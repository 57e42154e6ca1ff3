from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('fleet', '0003_engine_former_incarnations'),
    ]

    operations = [
        migrations.AddField(
            model_name='engine',
            name='drain_deadline_seconds',
            field=models.FloatField(default=600.0),
        ),
        migrations.AddField(
            model_name='engine',
            name='drain_linger_seconds',
            field=models.FloatField(default=60.0),
        ),
        migrations.AddField(
            model_name='engine',
            name='drain_requested_at',
            field=models.DateTimeField(blank=True, null=True, help_text='Null unless it drains.'),
        ),
        migrations.RunSQL(
            "UPDATE fleet_engine SET drain_requested_at = statement_timestamp() WHERE draining",
            migrations.RunSQL.noop,
        ),
    ]
