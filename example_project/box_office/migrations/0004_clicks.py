from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("box_office", "0003_seats")]  # noqa: RUF012 - the form Django writes

    operations = [  # noqa: RUF012
        migrations.AddField(
            model_name="order",
            name="click",
            field=models.UUIDField(db_index=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name="order",
            name="visitor",
            field=models.CharField(
                blank=True, db_index=True, default="", editable=False, max_length=32
            ),
            preserve_default=False,
        ),
    ]
