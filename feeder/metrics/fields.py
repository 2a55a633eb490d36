"""Declarations of a record's fields, and what can be done with any record because of them.

A record is a mutable msgspec Struct: it is counted in where things happen (``record.images += n``),
sent as it is, and read by verdicts, screens, JSON and Prometheus. Its class declares each field
once: type and unit (the end of its name: _s, _bytes) as ever, and in place of its default, whether
it only grows (a counter) or is a state now (a gauge), and the metric that it becomes, if any.

    images: Total = counter("Images that workers have made.")

A field with a help text is a metric, which has the field's name after the class's METRICS, unless
there is another: WorkerRecord.busy_s is feeder_worker_busy_seconds_total.
"""

import dataclasses
import functools
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

Total = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0, le=1e18)]  # finite, so that all rates are
NO_CONTROLS: Final = r"^[^\x00-\x1f\x7f-\x9f]*\Z"  # texts of a report end up on terminals
ShortText = Annotated[str, Meta(max_length=512, pattern=NO_CONTROLS)]
Label = Annotated[str, Meta(max_length=256, pattern=NO_CONTROLS)]

Counters = dict[str, int | float | str]
"""Counters by name; those by reason, stage and so on are named ``name.reason``."""

Record: TypeAlias = Struct
_Record = TypeVar("_Record", bound=Record)


@dataclass(frozen=True, slots=True)
class Field:
    kind: Literal["counter", "gauge", "histogram"]
    """A counter only grows, from 0 at the start of its subject; a gauge is a state now."""
    help: str = ""
    metric: str = ""
    label: str = ""  # of counters by reason, and of several fields that are one metric
    value: str = ""  # the label's, where several fields are one metric
    values: tuple[str, ...] = ()
    """All words of a state; reasons of a counter that are there from the start, at 0: an increase
    of a series that was absent before does not count as one."""
    start: Any = 0  # the first value, or a type that makes it
    merge: Callable[[Iterable[Any]], Any] = sum  # of the gauges of several records
    is_trouble: bool = False  # it stays 0 while all is well


class _Start(functools.partial[Any]):
    """Makes a field's first value, without a Python call: a session's record has twenty fields."""

    field: Field


def _declare(*arguments: Any, **more: Any) -> Any:
    field = Field(*arguments, **more)
    start = field.start
    make = _Start(start) if callable(start) else _Start(type(start), start)
    make.field = field
    return msgspec.field(default_factory=make)


counter: Final = functools.partial(_declare, "counter")
seconds: Final = functools.partial(counter, start=0.0)
trouble: Final = functools.partial(counter, is_trouble=True)
gauge: Final = functools.partial(_declare, "gauge")
histogram: Final = functools.partial(_declare, "histogram")


@functools.cache
def fields_of(record: type[Struct]) -> Mapping[str, Field]:
    """The declared fields of a record's class, by name; what identifies its subject has none."""
    prefix = getattr(record, "METRICS", "")
    fields = {}
    for info in msgspec.structs.fields(record):
        if isinstance(info.default_factory, _Start):
            field = info.default_factory.field
            metric = field.metric or prefix + re.sub("_s$", "_seconds", info.name)
            if get_origin(info.type) is Literal:  # a state
                words = get_args(info.type)
                field = dataclasses.replace(field, label=info.name, values=words)
            fields[info.name] = dataclasses.replace(field, metric=metric)
    return fields


@functools.cache
def _counters(
    record: type[Struct],
) -> tuple[tuple[str, ...], Callable[[Struct], tuple[float, ...]], tuple[str, ...]]:
    """The counters that are numbers (two or more), what reads all of these at once, and the other
    counters, which are records or dicts. Every session's record is read twice a second."""
    counters = {n: field.start for n, field in fields_of(record).items() if field.kind == "counter"}
    numbers = tuple(name for name, start in counters.items() if not callable(start))
    parts = tuple(name for name, start in counters.items() if callable(start))
    return numbers, attrgetter(*numbers), parts


def grown(before: float, now: float) -> float:
    """By how much a total has grown; one that fell was replaced, and counts from zero."""
    return now - before if now >= before else now


def add(record: _Record, more: _Record) -> None:
    """Add the counters of ``more`` to those of ``record``."""
    numbers, read, parts = _counters(type(record))
    for name, total in zip(numbers, map(operator.add, read(record), read(more)), strict=True):
        setattr(record, name, total)
    for name in parts:
        add(getattr(record, name), getattr(more, name))


def growth(before: _Record, now: _Record) -> _Record:
    """``now``, its counters replaced by what they have grown since ``before``."""
    numbers, read, parts = _counters(type(now))
    values: dict[str, Any] = dict(zip(numbers, map(grown, read(before), read(now)), strict=True))
    for name in parts:
        first, last = getattr(before, name), getattr(now, name)
        if isinstance(last, dict):
            values[name] = {key: grown(first.get(key, 0), total) for key, total in last.items()}
        else:
            values[name] = growth(first, last)
    return replace(now, **values)


def merged(records: Sequence[_Record]) -> _Record:
    """Several records as one, which has the identity of the first."""
    kind = type(records[0])
    numbers, read, parts = _counters(kind)
    totals = map(sum, zip(*map(read, records), strict=True))
    values: dict[str, Any] = dict(zip(numbers, totals, strict=True))
    for name in parts:
        values[name] = merged([getattr(record, name) for record in records])
    for name, field in fields_of(kind).items():
        if field.kind == "gauge":
            values[name] = field.merge(getattr(record, name) for record in records)
    return replace(records[0], **values)


def flatten(*groups: Struct) -> Counters:
    """All counters by name: the fields of the groups, and those of NodeRecord in its FLAT."""
    counters: Counters = {}
    for group in groups:
        flat = getattr(group, "FLAT", ())
        for name in flat or group.__struct_fields__:
            value = getattr(group, name)
            row = fields_of(type(group))[name].metric if flat else name
            if isinstance(value, Struct):  # the cache
                value = {count: getattr(value, count) for count in _counters(type(value))[0]}
            if isinstance(value, dict):
                counters.update({f"{row}.{key}": count for key, count in sorted(value.items())})
            else:
                counters[row] = value
    return counters


def unflatten(kind: type[_Record], counters: Mapping[str, int | float | str]) -> _Record:
    """A group of counters from the flat ones; texts are left out."""
    group = kind()
    for key, value in counters.items():
        name, _, part = key.partition(".")
        if name in kind.__struct_fields__ and not isinstance(value, str):
            own = getattr(group, name)
            if isinstance(own, dict):
                own[part] = value
            elif not part:
                setattr(group, name, value)
    return group
