"""What a program saves beside an engine, as JSON from which the very same values come back.

What JSON has itself is written as it is. All else is an object with the member "zero.type", which says what it is:

    {"zero.type": "tuple", "items": [...]}
    {"zero.type": "dict", "items": [[key, value], ...]}      keys that are not text
    {"zero.type": "float", "bits": "7ff0000000000000"}       that is not finite
    {"zero.type": "int", "hex": "0x10000000000000000"}       of 64 bits or more
    {"zero.type": "str", "base64": "7aCA"}                   that UTF-8 has not: half of a pair of surrogates
"""

from __future__ import annotations

import base64
import collections
import json
import math
import struct
from typing import Any

from ._native import CheckpointError, ConfigError

_TYPE = "zero.type"
_SEQUENCES: dict[str, type] = {kind.__name__: kind for kind in (tuple, set, frozenset)}
_MAPPINGS: dict[str, type] = {kind.__name__: kind for kind in (dict, collections.Counter, collections.OrderedDict)}
_BYTES: dict[str, type] = {kind.__name__: kind for kind in (bytes, bytearray)}
_DEEPEST = 100  # values in each other


def json_of(user: Any) -> str:
    """Raises ConfigError, naming where it lies, for what would not come back as it is."""
    return "" if user is None else json.dumps(_encoded(user, "user", []), allow_nan=False)


def _encoded(value: Any, path: str, around: list[int]) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        return value if _is_unicode(value) else {_TYPE: "str", "base64": _base64(value.encode(errors="surrogatepass"))}
    if kind is int:
        return value if value.bit_length() < 64 else {_TYPE: "int", "hex": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {_TYPE: "float", "bits": struct.pack(">d", value).hex()}
    if kind in _BYTES.values():
        return {_TYPE: kind.__name__, "base64": _base64(value)}
    if kind is not list and kind not in _SEQUENCES.values() and kind not in _MAPPINGS.values():
        raise _misfit(value, path)
    if id(value) in around:
        raise ConfigError(f"`user` of save() contains itself: {path}")
    if len(around) == _DEEPEST:
        raise ConfigError(f"`user` of save() has more than {_DEEPEST} values in each other: {path}")
    return _container(value, path, [*around, id(value)])


def _container(value: Any, path: str, around: list[int]) -> Any:
    kind = type(value)
    if kind in _MAPPINGS.values():
        items = [
            (_encoded(key, f"the key {key!r} of {path}", around), _encoded(each, f"{path}[{key!r}]", around))
            for key, each in value.items()
        ]
        if kind is dict and _TYPE not in value and all(type(key) is str and _is_unicode(key) for key in value):
            return dict(items)
        return {_TYPE: kind.__name__, "items": items}
    places = ("{...}" if kind in (set, frozenset) else f"[{i}]" for i in range(len(value)))
    elements = [_encoded(each, path + place, around) for each, place in zip(value, places, strict=True)]
    return elements if kind is list else {_TYPE: kind.__name__, "items": elements}


def _base64(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode()


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _misfit(value: Any, path: str) -> ConfigError:
    kind = type(value)
    hint = "save what it consists of"
    if hasattr(value, "tolist"):
        hint = "tolist() makes of it what comes back"
    if hasattr(value, "detach"):
        hint = "`tensors` of save() is for tensors; item() makes a number of one"
    for plain in (bool, int, float, str, bytes, tuple, list, dict):
        if isinstance(value, plain):
            hint = f"{plain.__name__}() makes of it what comes back"
            break
    return ConfigError(
        f"`user` of save() would not come back as it is: {path} is of type {kind.__module__}.{kind.__qualname__} ({hint})"
    )


def values_of(text: str, folder: str) -> Any:
    """Raises CheckpointError for what json_of() does not write."""
    if not text:
        return None
    try:
        return json.loads(text, object_hook=_decoded)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{folder}: `user` cannot be read: {error!r}") from None


def _decoded(found: dict[str, Any]) -> Any:
    if _TYPE not in found:
        return found
    name = found[_TYPE]
    if name == "float":
        return struct.unpack(">d", bytes.fromhex(found["bits"]))[0]
    if name == "int":
        return int(found["hex"], 16)
    if name == "str":
        return base64.b64decode(found["base64"], validate=True).decode(errors="surrogatepass")
    if name in _BYTES:
        return _BYTES[name](base64.b64decode(found["base64"], validate=True))
    if name in _SEQUENCES:
        return _SEQUENCES[name](found["items"])
    if name not in _MAPPINGS:
        raise ValueError(f"'{_TYPE}' is {name!r}, which this version does not know")
    result = _MAPPINGS[name]()
    for key, value in found["items"]:
        result[key] = value
    return result
