"""Settings and parameters of a backend as Triton's C++ backends read them (BC8). Pure; any thread."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from halimede.errors import Invalid

_SWITCH = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
_DIGITS = re.compile(r"\s*([+-]?[0-9]+)")
_MOST_DIGITS = 20
_INT32 = range(-(2**31), 2**31)


@dataclass(frozen=True, slots=True)
class Settings:
    """String settings, read as Triton's backends do (BC8), with the place they come from, for the log."""

    where: str
    values: Mapping[str, str]

    def number(self, key: str, allowed: range = _INT32) -> int | None:
        """A whole number, None if it is not set. Text after its digits does not count. Raises Invalid."""
        value = self.values.get(key)
        if value is None:
            return None
        found = _DIGITS.match(value)
        if found is None or len(found[1]) > _MOST_DIGITS or int(found[1]) not in allowed:
            raise self.refusal(key, f"failed to convert '{value}' to integral number")
        return int(found[1])

    def count(self, key: str) -> int | None:
        """A number of threads. None if it is not above 0, since only such a number is applied (BO8). Raises Invalid."""
        number = self.number(key)
        return number if number is not None and number > 0 else None

    def choice(self, key: str, words: Mapping[str, str]) -> str | None:
        """What the table makes of a value, None if it is not set. Raises Invalid."""
        value = self.values.get(key)
        if value is None:
            return None
        if value not in words:
            raise self.refusal(key, f"unsupported {key} value '{value}' is requested")
        return words[value]

    def switch(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if value.lower() not in _SWITCH:
            raise self.refusal(key, f"failed to convert '{value}' to boolean")
        return _SWITCH[value.lower()]

    def refusal(self, key: str, text: str) -> Invalid:
        """Triton's text, which does not name the parameter; the log does."""
        error = Invalid(text)
        error.advice = f"{self.where}: correct the parameter '{key}'"
        return error
