"""Models that refuse a stale holder; the names that users import."""

from .claim import afenced as afenced
from .claim import fenced as fenced
from .field import FenceField as FenceField
from .rows import FencedRows as FencedRows
from .rows import RemoteHolder as RemoteHolder
from .rows import StaleFence as StaleFence
