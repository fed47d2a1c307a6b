"""The file that ``msprobe op_generate`` takes, in the published form."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec

from msprobe_core.config.text import given_path, read_json
from msprobe_core.errors import ConfigError, ConflictingSettingsError, UnknownFieldError

MOST_ITERATIONS = 1000


class Propagation(str, Enum):
    """Which direction of the call is repeated."""

    FORWARD = "forward"
    BACKWARD = "backward"


class InputMode(str, Enum):
    """Which inputs the script has."""

    RANDOM = "random_data"
    REAL = "real_data"


class OpConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a script is written of.

    Attributes:
        extract_api_path: JSON file with the records of one API: written if ``dump_json_path`` is given, and read
            otherwise.
        dump_json_path: The dump, or empty.
        api_name: Such as ``Functional.softmax.3``; may be left out if the records are of one API only.
        propagation: Direction of the call.
        data_mode: Inputs of the script.
        random_seed: Of random inputs.
        iter_times: Number of times that the script draws random inputs.
    """

    extract_api_path: Annotated[str, msgspec.Meta(min_length=1)]
    dump_json_path: str = ""
    api_name: str = ""
    propagation: Propagation = Propagation.FORWARD
    data_mode: InputMode = InputMode.RANDOM
    random_seed: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 1234
    iter_times: Annotated[int, msgspec.Meta(ge=1, le=MOST_ITERATIONS)] = 1

    @property
    def extracted(self) -> Path:
        """The file of the extracted records."""
        return given_path(self.extract_api_path, "'extract_api_path'")

    @property
    def dump(self) -> Path | None:
        """The dump to extract from; ``None`` to read what was extracted before."""
        return given_path(self.dump_json_path, "'dump_json_path'") if self.dump_json_path else None


def read_op_config(path: Path) -> OpConfig:
    """Read a configuration.

    Raises:
        ConfigError: it cannot be read, a field is unknown or of the wrong type, or fields exclude each other.
    """
    content = read_json(path, kind="a configuration of op_generate", advice="give a JSON file")
    if not isinstance(content, dict):
        raise ConfigError(f'{path}: is not a JSON object; give the fields, such as {{"extract_api_path": "api.json"}}')
    fields = cast("dict[str, Any]", content)
    for key in fields:
        if key not in OpConfig.__struct_fields__:
            raise UnknownFieldError(f"{path}: there is no field {key!r}; {nearest(key, OpConfig.__struct_fields__)}")
    kinds: dict[str, type[Enum]] = {"propagation": Propagation, "data_mode": InputMode}
    for key, kind in kinds.items():
        allowed = [str(each.value) for each in kind]
        if (value := fields.get(key, allowed[0])) not in allowed:
            raise ConfigError(f"{path}: '{key}' is {value!r}; {nearest(str(value), allowed)}")
    if "extract_api_path" not in fields:
        raise ConfigError(
            f"{path}: has no 'extract_api_path'; give the JSON file that the records of the API are written to"
        )
    try:
        config = msgspec.convert(fields, OpConfig)
    except msgspec.ValidationError as error:
        key = str(error).rpartition("$.")[2].strip("`")
        why = str(error).partition(" - at ")[0].replace("`", "'").lower()
        raise ConfigError(f"{path}: '{key}' is {fields.get(key)!r}: {why}") from error
    if config.dump_json_path and not config.api_name:
        raise ConfigError(f"{path}: has no 'api_name'; give the API of the dump, such as 'Functional.softmax.3'")
    if config.iter_times > 1 and config.data_mode is InputMode.REAL:
        raise ConflictingSettingsError(
            f"{path}: 'iter_times' is {config.iter_times}, but recorded inputs are the same each time; leave it out, "
            "or set 'data_mode' to 'random_data'"
        )
    return config


def nearest(word: str, known: Iterable[str], *, most: int = 20) -> str:
    """Return what may have been meant instead of a word, or up to ``most`` that are known."""
    several = list(known)
    close = difflib.get_close_matches(word, several, n=1, cutoff=0.5)
    listed = [*several[:most], *(["…"] if several[most:] else [])]
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(listed)}"
