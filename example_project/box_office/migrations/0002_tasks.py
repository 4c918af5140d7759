import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("box_office", "0001_initial")]  # noqa: RUF012 - the form Django writes

    operations = [  # noqa: RUF012 - the form Django writes
        migrations.CreateModel(
            name="Run",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("task_id", models.CharField(db_index=True, max_length=64)),
                ("worker", models.CharField(max_length=200)),
                ("pid", models.PositiveIntegerField()),
                ("fence", models.BigIntegerField()),
                ("began", models.DateTimeField(default=django.utils.timezone.now)),
                ("killed", models.DateTimeField(null=True)),
                ("ended", models.DateTimeField(null=True)),
                (
                    "show",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="runs",
                        to="box_office.show",
                    ),
                ),
            ],
            options={
                "ordering": ("pk",),
            },
        ),
        migrations.CreateModel(
            name="Sending",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("task", models.CharField(max_length=100)),
                ("at", models.DateTimeField(default=django.utils.timezone.now)),
                ("calls", models.PositiveIntegerField(default=0)),
                ("sent", models.PositiveIntegerField(default=0)),
                ("duplicates", models.PositiveIntegerField(default=0)),
                ("task_ids", models.JSONField(default=list)),
                (
                    "show",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="sendings",
                        to="box_office.show",
                    ),
                ),
            ],
            options={
                "ordering": ("-pk",),
            },
        ),
    ]
