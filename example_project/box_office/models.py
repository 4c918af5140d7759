"""What the lock protects: one row per show, which also keeps the highest fence it has seen.

A lock alone cannot stop a holder that was frozen, has lost the lock and does not know it yet.
So the row refuses it: a holder *claims* the row with its fence before it reads, and writes only
while the row still has that fence. Both are one statement each; between two, others could write.
"""

from django.db import models


class ShowQuerySet(models.QuerySet["Show"]):
    def claim(self, pk: int, fence: int) -> bool:
        """Enter: from now on the row refuses every lower fence. False if we are the stale one."""
        return self.filter(pk=pk, fence__lte=fence).update(fence=fence) == 1

    def write(self, pk: int, fence: int, sold: int) -> bool:
        """Write, unless somebody has claimed the row since we did."""
        return self.filter(pk=pk, fence=fence).update(sold=sold) == 1

    def sold(self, pk: int) -> int:
        return self.values_list("sold", flat=True).get(pk=pk)


class Show(models.Model):
    title = models.CharField(max_length=100)
    sold = models.PositiveIntegerField(default=0)
    fence = models.BigIntegerField(default=0, editable=False)

    objects = ShowQuerySet.as_manager()

    def __str__(self) -> str:
        return self.title
