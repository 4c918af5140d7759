import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("box_office", "0004_clicks")]  # noqa: RUF012 - the form Django writes

    operations = [  # noqa: RUF012
        migrations.CreateModel(
            name="Refusal",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("status", models.PositiveSmallIntegerField()),
                ("click", models.UUIDField(db_index=True)),
                ("visitor", models.CharField(blank=True, db_index=True, max_length=32)),
                ("at", models.DateTimeField(default=django.utils.timezone.now)),
            ],
        ),
    ]
