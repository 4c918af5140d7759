from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    operations = [  # noqa: RUF012 - the form Django writes
        migrations.CreateModel(
            name="Show",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("title", models.CharField(max_length=100)),
                ("sold", models.PositiveIntegerField(default=0)),
                ("fence", models.BigIntegerField(default=0, editable=False)),
            ],
        ),
    ]
