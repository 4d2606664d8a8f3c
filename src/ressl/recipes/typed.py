"""Values of a declared type from text or JSON: one reader for command lines, recipe files and Python overrides.

Whatever is wrong is said in one sentence that names the key.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ressl.errors import ResslError, unknown

_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}

hints_of = functools.cache(get_type_hints)  # evaluating them takes long, and a command asks hundreds of times


def convert(kind: Any, value: Any, key: str) -> Any:
    """``value`` as ``kind``, or a :class:`ResslError` that names ``key`` and what it wants."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _optional(args, value, key)
    if origin is Literal:
        if value not in args:
            raise unknown(f"value for {key}", value, map(str, args))
        return value
    if origin is tuple:
        return _tuple(args, value, key)
    if dataclasses.is_dataclass(kind):
        if isinstance(value, kind):  # type: ignore[arg-type]
            return value
        return build(kind, value, key)
    if origin is Mapping:
        if not isinstance(value, Mapping):
            raise ResslError(f"{key} must be a set of named values, not {value!r}")
        return {str(name): convert(args[1], item, f"{key}.{name}") for name, item in value.items()}
    readers = {bool: _bool, int: _int, float: _float, str: _str}
    if kind in readers:
        return readers[kind](value, key)
    return value


def build(cls: Any, values: Any, where: str) -> Any:
    """A dataclass from a mapping; an unknown or mistyped key raises and names the nearest one."""
    if not isinstance(values, Mapping):
        raise ResslError(f"{where} must be a set of named values, not {values!r}")
    hints = hints_of(cls)
    names = [field.name for field in dataclasses.fields(cls) if field.init]
    for name in values:
        if name not in names:
            raise unknown(f"key in {where}", name, names)
    missing = [
        f.name
        for f in dataclasses.fields(cls)
        if f.init and f.name not in values and f.default is f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ResslError(f"{where} lacks {', '.join(missing)}")
    return cls(**{name: convert(hints[name], value, name) for name, value in values.items()})


def plain(value: Any) -> Any:
    """The JSON form of a dataclass, tuple or mapping."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def wants(kind: Any) -> str:
    """A type in words, for help texts."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join("none" if arg is type(None) else wants(arg) for arg in args)
    if origin is Literal:
        return " | ".join(map(str, args))
    if origin is tuple:
        return ",".join(wants(arg) for arg in args if arg is not Ellipsis) + (",..." if Ellipsis in args else "")
    return {int: "whole number", float: "number", bool: "true|false", str: "text"}.get(kind, "text")


def _optional(args: tuple[Any, ...], value: Any, key: str) -> Any:
    if type(None) in args and (value is None or (isinstance(value, str) and value.lower() == "none")):
        return None
    error: ResslError | None = None
    for arg in args:
        if arg is type(None):
            continue
        try:
            return convert(arg, value, key)
        except ResslError as problem:
            error = problem
    assert error is not None
    raise error


def _tuple(args: tuple[Any, ...], value: Any, key: str) -> tuple[Any, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.strip("()[] ").split(",") if part.strip()]
    if not isinstance(value, (list, tuple)):
        raise ResslError(f"{key} wants values separated by commas, not {value!r}")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(convert(args[0], item, key) for item in value)
    if len(value) != len(args):
        raise ResslError(f"{key} wants {len(args)} values, not {len(value)}")
    return tuple(convert(kind, item, key) for kind, item in zip(args, value, strict=True))


def _bool(value: Any, key: str) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    raise ResslError(f"{key} wants true or false, not {value!r}")


def _int(value: Any, key: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        if isinstance(value, str):
            return int(value)
    except ValueError:
        pass
    raise ResslError(f"{key} wants a whole number, not {value!r}")


def _float(value: Any, key: str) -> float:
    try:
        if isinstance(value, bool):
            raise ValueError
        number = float(value)
        if math.isfinite(number):
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise ResslError(f"{key} wants a number, not {value!r}")


def _str(value: Any, key: str) -> str:
    if isinstance(value, str):
        return value
    raise ResslError(f"{key} wants text, not {value!r}")
