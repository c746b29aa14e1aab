"""Locating recipes and trained networks, and reading YAML."""

from __future__ import annotations

import os
import re
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pocketbayes.base.errors import UnknownNameError, UserError
from pocketbayes.base.run_folder import MODEL_FILE, RECIPE_FILE
from pocketbayes.training import checkpoint

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

MOST_TEXT = 1 << 16
"""Largest number of characters of YAML, since longer texts take seconds to parse; a recipe has some hundreds."""


def names() -> list[str]:
    """Return the names of the built-in recipes."""
    return sorted(file.name.removesuffix(".yaml") for file in _shipped().iterdir() if file.name.endswith(".yaml"))


def read_tree(source: str | Path) -> dict[str, Any]:
    """Return the unchecked values of a built-in recipe, of a YAML file, or of the run in a folder."""
    path = Path(source)
    if os.path.isdir(path) and (path / RECIPE_FILE).is_file():  # False for text that cannot be a path
        path = path / RECIPE_FILE
    if os.path.isfile(path):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise UserError(f"{path} is not a recipe: not a text file") from None
    elif path.suffix in (".yaml", ".yml"):
        raise UserError(f"no recipe file {path}")
    elif str(source) in names():
        text = (_shipped() / f"{source}.yaml").read_text(encoding="utf-8")
    else:
        raise UnknownNameError("recipe (and no such file)", str(source), names())
    tree = parse_yaml(text, str(source))
    if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
        raise UserError(f"{source} is not a recipe: it must be a YAML mapping, with method, model and data")
    return tree


def override(tree: dict[str, Any], item: str) -> None:
    """Change a value of a recipe: `training.lr=0.01`, `method.prior_std=0.1`, `data=mnist`."""
    key, equals, text = item.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise UserError(f"cannot set {item!r}: write key=value, such as training.lr=0.01")
    node = tree
    for part in parts[:-1]:
        below = node.get(part)
        below = {"name": below} if isinstance(below, str) else {} if below is None else below
        if not isinstance(below, dict):
            raise UserError(f"cannot set {key!r}: {part} is {below!r}, which has no settings")
        node[part] = below
        node = below
    node[parts[-1]] = parse_yaml(text, f"the value of {key}")


def network_file(path: str | Path) -> Path:
    """Return the file of a trained network: the given file, or the one in a run folder."""
    path = Path(path)
    if not path.is_dir() or (path / MODEL_FILE).is_file():
        return path / MODEL_FILE if path.is_dir() else path
    unfinished = checkpoint.has_begun(path)
    inside = sorted(file.parent.name for file in path.glob(f"*/{MODEL_FILE}"))
    way_out = (
        f"finish it with `pocketbayes train --out {path} --resume`" if unfinished
        else f"it contains runs: give one of them, such as {path / inside[0]}" if inside
        else "it is not a run"
    )  # fmt: skip
    raise UserError(f"the folder {path} has no {MODEL_FILE}: {way_out}")


class _Yaml(yaml.SafeLoader):
    """A loader with YAML 1.2's numbers (PyYAML reads 1e-3 as text), without aliases and duplicate keys.

    A few lines of aliases can expand to more values than fit memory.
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Read a mapping and reject duplicate keys, of which PyYAML silently keeps the last."""
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = next((key for place, key in enumerate(keys) if key in keys[:place]), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice!r} appears twice", node.start_mark)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not supported: write values out", mark)
        return super().compose_node(parent, index)

    def construct_yaml_int(self, node: Any) -> int:
        value: int = super().construct_yaml_int(node)
        if abs(value) >= 1 << 63:  # Python does not print them all
            raise yaml.constructor.ConstructorError(None, None, "an integer beyond 64 bits", node.start_mark)
        return value


# Types that JSON also has; dates, sets and bytes could not be written back.
_PLAIN = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "seq", "map")}
_Yaml.yaml_constructors = {
    tag: construct for tag, construct in yaml.SafeLoader.yaml_constructors.items() if tag is None or tag in _PLAIN
}
_Yaml.add_constructor("tag:yaml.org,2002:int", _Yaml.construct_yaml_int)
_Yaml.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag in _PLAIN]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def parse_yaml(text: str, source: str) -> Any:
    """Parse YAML; `source` names the text in error messages."""
    if len(text) > MOST_TEXT:
        raise UserError(f"{source} is too long for a recipe: {len(text)} characters, the limit is {MOST_TEXT}")
    try:
        return yaml.load(text, _Yaml)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{source} is not YAML{line}: {getattr(error, 'problem', None) or error}") from None
    # Unclosed brackets, a number with too many digits, or a tag that does not match its text.
    except (ValueError, RecursionError, LookupError, AttributeError, TypeError, OverflowError) as error:
        raise UserError(f"{source} is not YAML: {type(error).__name__}: {error}") from None


def _shipped() -> Traversable:
    return resources.files("pocketbayes") / "recipes"
