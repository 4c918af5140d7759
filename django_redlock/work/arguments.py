"""Write the arguments of a call as one text: equal calls, and no others, give equal texts.

``1``, ``1.0``, ``True`` and ``"1"`` are four values. The order of a dictionary or a set does not
count, and a list is a tuple, because a message queue cannot tell them apart. What is not plain
data is refused: the text of an object may contain its address.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from uuid import UUID

from django_redlock.core.names import as_stored, is_record


def digest(arguments: Mapping[str, object]) -> str:
    """Digest the arguments of a call into 64 hexadecimal digits, which show none of them.

    Raises:
        TypeError: an argument is not plain data, or contains itself.
    """
    try:
        text = canonical(arguments)
    except RecursionError:
        msg = (
            "no key can be made of arguments that are nested so deeply, or contain themselves: "
            'name those that matter, as in "report:{report_id}"'
        )
        raise TypeError(msg) from None
    return hashlib.sha256(text.encode()).hexdigest()


def canonical(value: object) -> str:  # noqa: C901, PLR0911 - a table, by type
    """Write plain data as ASCII text.

    Raises:
        TypeError: it is not plain data; the error does not quote it, for it may be a secret.
    """
    match value:
        case None | bool():
            return str(value)
        case str():  # also of an enumeration: a queue delivers plain text
            return json.dumps(value)
        case int():
            return f"i{int(value):x}"
        case float():
            stored = as_stored(float(value))  # a queue in a database gives it back so
            return f"i{stored:x}" if type(stored) is int else f"f{stored!r}"
        case bytes() | bytearray() | memoryview():
            return f"b{bytes(value).hex()}"
        case list() | tuple():
            return f"[{','.join(map(canonical, value))}]"
        case AbstractSet():
            return f"s[{','.join(sorted(map(canonical, value)))}]"
        case Mapping():
            items = sorted(f"{canonical(key)}:{canonical(item)}" for key, item in value.items())
            return f"{{{','.join(items)}}}"
        case Enum():
            text = value.name
        case datetime() | date() | time() | timedelta() | Decimal() | UUID() | PurePath():
            text = str(value)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.fields(value)
            text = canonical({each.name: getattr(value, each.name) for each in fields})
        case _:
            example = "invoice:{invoice.pk}" if is_record(value) else "report:{report_id}"
            msg = (
                f"no key can be made of a {value.__class__.__qualname__}: "
                f'name the arguments that matter, as in "{example}"'
            )
            raise TypeError(msg)
    # Two types may write one text: what is no plain JSON has the name of its type beside it.
    return f"({json.dumps(type(value).__qualname__)},{json.dumps(text)})"
