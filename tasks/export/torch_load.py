"""Load a torch model: from the user's loader, with weights or without, or from a file. No pickle in a file runs."""

import os
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from onnxmill.tasks import loader
from onnxmill.tasks.errors import InputError, close_match, shorten
from onnxmill.tasks.export import SourceSettings
from onnxmill.tasks.export.torch_call import Program

FORCE_WEIGHTS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
SHOWN = 3
"""Keys of a state dict that an error names."""


def load(settings: SourceSettings) -> torch.nn.Module:
    """The module of the spec. Raises `InputError` where there is none, or where its weights do not fit it."""
    if settings.path:
        return _from_file(settings.path)
    assert settings.loader
    model = loader.call("source.loader", settings.loader)
    if not isinstance(model, torch.nn.Module):
        kind = type(model).__name__
        raise InputError("source.loader", settings.loader, f"must return a torch.nn.Module; it returned a {kind}")
    if settings.state_dict:
        _load_weights(model, settings.state_dict)
    return model


# --- files of models -------------------------------------------------------------------------------------------------


def _from_file(name: str) -> torch.nn.Module:
    """A TorchScript file, which holds no pickled Python, or a torch.export program: only tensors are unpickled."""
    entries = _entries(Path(name))
    try:
        if any("/code/" in entry for entry in entries):
            script: torch.nn.Module = torch.jit.load(name, map_location="cpu")  # type: ignore[no-untyped-call]
            return script
        if any(entry.endswith("archive_format") for entry in entries):
            with _tensors_alone():
                return Program(torch.export.load(name))
    except Exception as error:  # torch raises of every kind for a file that is damaged or was edited
        raise InputError("source.path", name, f"cannot be loaded: {_line(error)}", _save_again()) from error
    raise InputError(
        "source.path",
        name,
        "is neither a TorchScript file nor a torch.export program (.pt2); no other pickle is opened: it could run code",
        "give source.loader, which builds the module, and source.state_dict for the weights",
    )


def _entries(path: Path) -> list[str]:
    if not zipfile.is_zipfile(path):
        return []
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


@contextmanager
def _tensors_alone() -> Iterator[None]:
    """A block in which torch.load opens tensors alone: torch.export.load would fall back to plain pickle."""
    before = os.environ.get(FORCE_WEIGHTS_ONLY)
    os.environ[FORCE_WEIGHTS_ONLY] = "1"
    try:
        yield
    finally:
        del os.environ[FORCE_WEIGHTS_ONLY]
        if before is not None:
            os.environ[FORCE_WEIGHTS_ONLY] = before


# --- weights ---------------------------------------------------------------------------------------------------------


def _load_weights(model: torch.nn.Module, name: str) -> None:
    """Load the file's weights into `model`: every one that it has, and no other."""
    own = model.state_dict()
    try:
        if name.endswith(".safetensors"):
            from safetensors.torch import load_model

            missing, unexpected = load_model(model, name, strict=False)  # knows tensors that are shared
        else:
            found = _unwrapped(name, _read(name), own)
            missing, unexpected = model.load_state_dict(found, strict=False, assign=_can_take(model, own, found))
    except InputError:
        raise
    except ImportError as error:
        raise InputError("source.state_dict", name, f"cannot be read here: {error}", "install safetensors") from error
    except Exception as error:  # sizes that differ, damaged files
        raise InputError("source.state_dict", name, f"does not fit the module: {_line(error)}") from error
    faults = [("lacks", sorted(missing)), ("has", sorted(unexpected))]
    text = "; ".join(f"{verb} {_some(keys)}" for verb, keys in faults if keys)
    if text:
        hint = close_match(next(iter(sorted(unexpected)), ""), missing) if missing and unexpected else ""
        known = "" if not unexpected else ", which the module does not have"
        raise InputError("source.state_dict", name, f"{text}{known}", hint.partition("?")[0] if "?" in hint else "")


def _can_take(model: torch.nn.Module, own: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether the module can have the file's tensors themselves, mapped from it: a copy of a large model's would take
    its memory twice. A scripted module cannot, nor one of another dtype."""
    dtypes = {key: getattr(value, "dtype", None) for key, value in own.items()}
    alike = all(getattr(found.get(key), "dtype", None) == dtype for key, dtype in dtypes.items())
    return alike and not isinstance(model, torch.jit.ScriptModule)


def _read(name: str) -> Any:
    """A pickle file that may hold tensors and plain containers; whatever else it asks for is refused, not run."""
    mapped = zipfile.is_zipfile(name)  # older files have no zip around them, and cannot be mapped
    try:
        return torch.load(name, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        asked = str(error).partition("WeightsUnpickler error: ")[2] or str(error)
        needs = f"holds more than weights, and is not opened: {shorten(' '.join(asked.split()).partition('. ')[0])}"
        raise InputError("source.state_dict", name, needs, _save_again()) from error
    except Exception as error:  # torch raises of every kind for a file that is no pickle
        raise InputError("source.state_dict", name, f"is no file of weights: {_line(error)}", _save_again()) from error


def _unwrapped(name: str, found: Any, own: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state dict in what a file holds: that itself, or the one part of it that has weights of the module."""
    if not isinstance(found, Mapping):
        kind = type(found).__name__
        raise InputError("source.state_dict", name, f"must hold a dict of tensors; it holds a {kind}", _save_again())
    if set(found) & set(own):
        return found
    inside = [key for key, part in found.items() if isinstance(part, Mapping) and set(part) & set(own)]
    if len(inside) > 1:
        raise InputError("source.state_dict", name, f"holds weights of the module in {inside}", "save the one to use")
    part: Mapping[str, Any] = found[inside[0]] if inside else found
    return part


def _some(keys: list[str]) -> str:
    more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return ", ".join(f"'{key}'" for key in keys[:SHOWN]) + more


def _line(error: BaseException) -> str:
    return shorten(" ".join(str(error).split()), 300)


def _save_again() -> str:
    return "save the weights alone: torch.save(model.state_dict(), 'weights.pt'), or as .safetensors"
