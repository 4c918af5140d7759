import django.db.models.deletion
from django.db import migrations, models

import django_redlock.fencing


class Migration(migrations.Migration):
    dependencies = [("box_office", "0002_tasks")]  # noqa: RUF012 - the form Django writes

    operations = [  # noqa: RUF012
        migrations.AlterField(
            model_name="show",
            name="fence",
            field=django_redlock.fencing.FenceField(),
        ),
        migrations.CreateModel(
            name="Seat",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("row", models.CharField(max_length=2)),
                ("number", models.PositiveSmallIntegerField()),
                ("price", models.DecimalField(decimal_places=2, max_digits=6)),
                ("taken_by", models.CharField(blank=True, max_length=100)),
                ("visitor", models.CharField(blank=True, editable=False, max_length=32)),
                ("fence", django_redlock.fencing.FenceField()),
                (
                    "show",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="seats",
                        to="box_office.show",
                    ),
                ),
            ],
            options={
                "ordering": ("row", "number"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("show", "row", "number"), name="a_number_is_one_seat_of_a_show"
                    )
                ],
            },
        ),
    ]
