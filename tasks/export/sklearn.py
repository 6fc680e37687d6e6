"""scikit-learn: load a fitted estimator through the user's loader, run it, export it by skl2onnx.

What an estimator gives, and what it is called: a classifier `label` [batch] and `probabilities` [batch, classes], or
`scores` [batch, classes] (binary: [batch, 1]) where it has no probabilities; a regressor `variable` [batch, targets]; a
cluster or an outlier model `label` [batch] and `scores`; a transformer `transformed` [batch, columns].

The estimator itself runs in float64, as it was trained; its outputs have the dtype of its inputs.
"""

import importlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from skl2onnx import __max_supported_opset__ as MAX_OPSET
from skl2onnx import convert_sklearn
from skl2onnx.common import data_types
from skl2onnx.common._registration import get_converter
from skl2onnx.common.exceptions import MissingConverter, MissingShapeCalculator
from sklearn.base import BaseEstimator, is_classifier, is_clusterer, is_outlier_detector, is_regressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import NotFittedError
from sklearn.svm import SVC, LinearSVC, NuSVC
from sklearn.utils.validation import check_is_fitted

from onnxmill.calibration.samples import Array
from onnxmill.tasks import graph, loader
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.export import SourceSettings
from onnxmill.tasks.export.interface import conform
from onnxmill.tasks.export.sklearn_graph import flatten, index, keep_column, widen
from onnxmill.tasks.export.sklearn_rows import ROWS, rows
from onnxmill.tasks.findings import Finding, finding
from onnxmill.tasks.spec import Contract

ML_OPSET = 3
"""Of ai.onnx.ml: the first with float64 trees, and what every ONNX Runtime since 1.11 reads."""
TYPES = {
    "float32": data_types.FloatTensorType,
    "float64": data_types.DoubleTensorType,
    "int64": data_types.Int64TensorType,
    "int32": data_types.Int32TensorType,
    "bool": data_types.BooleanTensorType,
}
HIST_GRADIENT_BOOSTING = (HistGradientBoostingClassifier, HistGradientBoostingRegressor)
SAME = 1e-4
"""A prediction differs where it does so by more than this part of the range of all."""


@dataclass(frozen=True)
class Estimator:
    """A fitted estimator, alone or a whole pipeline."""

    model: Any

    def predict(self, inputs: Mapping[str, Array]) -> list[tuple[str, Array]]:
        self._check({name: array.shape for name, array in inputs.items()})
        dtype = np.result_type(np.float32, *(array.dtype for array in inputs.values() if array.dtype.kind == "f"))
        outputs = self._outputs({name: inputs[name] for name in self._columns(tuple(inputs))})
        return [(name, array.astype(dtype) if array.dtype.kind == "f" else array) for name, array in outputs]

    def routes(self, contract: Contract, opset: int) -> list[str]:
        return ["skl2onnx"]

    def write(self, route: str, contract: Contract, opset: int, path: Path) -> list[Finding]:
        self._check({name: contract.inputs[name].shape for name in contract.input_names})
        names = self._columns(contract.input_names)
        for name in names:
            if contract.inputs[name].dtype not in TYPES:
                dtype = contract.inputs[name].dtype
                return [finding("EXP003", f"input {name}", f"{dtype}: skl2onnx takes {', '.join(TYPES)}")]
        try:
            proto = self._convert(contract, names, min(opset, MAX_OPSET))
        except (MissingConverter, MissingShapeCalculator, RuntimeError) as error:
            unsupported = _unsupported(str(error))
            if not unsupported:
                raise
            return [finding("EXP002", unsupported, "skl2onnx has no converter for it", fix=_WAY_OUT)]
        self._finish(proto, contract, min(opset, MAX_OPSET))
        graph.save(proto, path)
        return self._float64(proto, contract, names)

    def _check(self, shapes: Mapping[str, tuple[int | str, ...]]) -> None:
        for name, shape in shapes.items():
            if len(shape) != 2 or not isinstance(shape[1], int):
                raise InputError(f"inputs.{name}.shape", list(shape), "must be [batch, number of columns]")
        given = sum(int(shape[1]) for shape in shapes.values())
        wanted = getattr(self.model, "n_features_in_", given)
        if given != wanted:
            key = f"inputs.{next(iter(shapes))}.shape" if len(shapes) == 1 else "inputs"
            shown = [list(shape) for shape in shapes.values()]
            raise InputError(
                key, shown, f"{given} columns; the estimator was fitted on {wanted}", f"give [batch, {wanted}]"
            )

    def _columns(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The inputs in the order of the estimator's columns: by name where it was fitted on columns of these names,
        else as the spec has them."""
        fitted = tuple(getattr(self.model, "feature_names_in_", ()))
        return fitted if set(fitted) == set(names) else names

    def _outputs(self, inputs: Mapping[str, Array]) -> list[tuple[str, Array]]:
        """What the estimator gives for its columns, in float64 and int64."""
        model, last = self.model, _last(self.model)
        table = _table(model, inputs)
        if is_classifier(last):
            label = _index(model, np.asarray(model.predict(table)))
            if hasattr(model, "predict_proba"):
                return [("label", label), ("probabilities", np.asarray(model.predict_proba(table), np.float64))]
            return [("label", label), ("scores", _two_axes(model.decision_function(table)))]
        if is_clusterer(last) or is_outlier_detector(last):
            scores = model.transform(table) if is_clusterer(last) else model.decision_function(table)
            return [("label", np.asarray(model.predict(table), np.int64)), ("scores", _two_axes(scores))]
        if is_regressor(last):
            return [("variable", _two_axes(model.predict(table)))]
        values = model.transform(table)
        return [("transformed", _two_axes(values.toarray() if hasattr(values, "toarray") else values))]

    def _convert(self, contract: Contract, names: tuple[str, ...], opset: int) -> onnx.ModelProto:
        types = [(n, TYPES[contract.inputs[n].dtype]([None, contract.inputs[n].shape[1]])) for n in names]
        settings: dict[str, Any] = {
            "initial_types": types,
            "target_opset": {"": opset, "ai.onnx.ml": ML_OPSET},
            "custom_conversion_functions": dict.fromkeys(HIST_GRADIENT_BOOSTING, _integers_only),
        }
        last = _last(self.model)
        if is_classifier(last):  # LinearSVC has no ZipMap and does not know the option
            settings["options"] = {id(last): {}} if isinstance(last, LinearSVC) else {id(self.model): {"zipmap": False}}
        proto: onnx.ModelProto = convert_sklearn(self.model, "estimator", **settings)
        return proto

    def _finish(self, proto: onnx.ModelProto, contract: Contract, opset: int) -> None:
        """Edit the converted graph so that it is what `predict` gives."""
        last, outputs = _last(self.model), proto.graph.output
        widen(proto, trees_in_float32=not isinstance(last, HIST_GRADIENT_BOOSTING))
        if is_classifier(last):
            if outputs[0].type.tensor_type.elem_type == TensorProto.STRING:
                classes = [str(name) for name in self.model.classes_]
                index(proto, classes)
                helper.set_model_props(proto, {"classes": json.dumps(classes)})
            if not hasattr(self.model, "predict_proba") and len(self.model.classes_) == 2:
                # those of both classes, or of the second alone; SVC's two have their signs the other way round
                keep_column(proto, 0 if isinstance(last, SVC | NuSVC) else -1)
        elif is_outlier_detector(last):
            flatten(proto)
        for output in outputs:
            output.type.tensor_type.ClearField("shape")  # it is wrong for several targets, and for scores
        own = dict(zip(_names(self.model), (output.name for output in outputs), strict=True))
        named = contract.output_names
        given = [own[n] for n in named] if set(named) == set(own) else list(own.values())
        taken = {_plain(value.name): value.name for value in proto.graph.input}
        conform(proto, contract, [taken.get(_plain(n), n) for n in contract.input_names], given)
        del proto.opset_import[:]  # skl2onnx writes the lowest that its operators need, or two
        proto.opset_import.extend([helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", ML_OPSET)])

    def _float64(self, proto: onnx.ModelProto, contract: Contract, names: tuple[str, ...]) -> list[Finding]:
        """EXP004 where the graph decides otherwise than the estimator in float64, with the number of rows.

        None are counted in an environment without ONNX Runtime, or where the estimator does not take such rows.
        """
        tensors = [contract.inputs[name] for name in names]
        if any(np.dtype(tensor.dtype).kind != "f" for tensor in tensors) or not find_spec("onnxruntime"):
            return []
        onnxruntime = importlib.import_module("onnxruntime")
        widths = np.cumsum([int(tensor.shape[1]) for tensor in tensors])
        table, where = rows(self.model, int(widths[-1]))
        inputs = dict(zip(names, np.split(table, widths[:-1], axis=1), strict=True))
        try:
            first, want = self._outputs(inputs)[0]
        except ValueError:  # logarithms of negative values and the like
            return []
        output = first if first in contract.output_names else contract.output_names[0]
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        feed = {name: array.astype(contract.inputs[name].dtype) for name, array in inputs.items()}
        (given,) = session.run([output], feed)
        limit = SAME * float(want.max() - want.min()) if want.dtype.kind == "f" else 0.0
        differ = np.abs(given.astype(np.float64) - want).reshape(ROWS, -1).max(axis=1) > limit
        count = int(differ.sum())
        if not count:
            return []
        float32 = any(tensor.dtype == "float32" for tensor in tensors)
        fix = "give the inputs dtype float64" if float32 else "see whether such rows matter to you"
        return [finding("EXP004", f"output {output}", f"{count} of {ROWS} rows {where}", measured=count, fix=fix)]


_WAY_OUT = (
    "use an estimator that skl2onnx converts, or register a converter for it in the loader "
    "(skl2onnx.update_registered_converter)"
)


def load(settings: SourceSettings) -> Estimator:
    """The user's estimator. Raises `InputError` where it is none, is not fitted, or predicts several labels at once."""
    assert settings.loader
    model = loader.call("source.loader", settings.loader)
    kind = type(model).__name__
    if not isinstance(model, BaseEstimator):
        raise InputError(
            "source.loader", settings.loader, f"must return a scikit-learn estimator; it returned a {kind}"
        )
    try:
        check_is_fitted(model)
    except NotFittedError as error:
        fix = "call fit in the loader, or load the fitted one"
        raise InputError("source.loader", settings.loader, f"returned a {kind} that is not fitted", fix) from error
    last = _last(model)
    predicts = is_classifier(last) or is_regressor(last) or is_clusterer(last) or is_outlier_detector(last)
    if not hasattr(model, "predict" if predicts else "transform"):
        expected = f"{kind} neither predicts a class, a value, a cluster or outliers of new data, nor transforms it"
        raise InputError("source.loader", settings.loader, expected, "give another estimator")
    if isinstance(getattr(model, "classes_", None), list):
        fix = "export one classifier for each"
        raise InputError("source.loader", settings.loader, f"{kind} predicts several labels at once", fix)
    return Estimator(model)


def _last(model: Any) -> Any:
    """The estimator that decides what comes out: a pipeline's last one, a search's best one."""
    if hasattr(model, "steps"):
        return _last(model.steps[-1][1])
    return _last(model.best_estimator_) if hasattr(model, "best_estimator_") else model


def _table(model: Any, inputs: Mapping[str, Array]) -> Any:
    """One table of all columns: a DataFrame where the estimator was fitted on one (and pandas is there)."""
    columns = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in inputs.items()}
    names = getattr(model, "feature_names_in_", None)
    if names is None or not find_spec("pandas"):
        return np.hstack(list(columns.values()))
    pandas = importlib.import_module("pandas")
    if tuple(names) == tuple(columns):  # a dtype for each column
        return pandas.DataFrame({name: array[:, 0] for name, array in columns.items()})
    return pandas.DataFrame(np.hstack(list(columns.values())), columns=names)


def _index(model: Any, label: Array) -> Array:
    """Labels as int64: numbers as they are, names by their place in `classes_`."""
    if label.dtype.kind in "biuf":
        return label.astype(np.int64)
    places = {name: place for place, name in enumerate(model.classes_)}
    return np.array([places[name] for name in label], np.int64)


def _two_axes(values: Any) -> Array:
    array = np.asarray(values, np.float64)
    return array.reshape(len(array), -1)


def _names(model: Any) -> list[str]:
    """The outputs of an estimator, as `predict` gives them."""
    last = _last(model)
    if is_classifier(last):
        return ["label", "probabilities" if hasattr(model, "predict_proba") else "scores"]
    if is_clusterer(last) or is_outlier_detector(last):
        return ["label", "scores"]
    return ["variable"] if is_regressor(last) else ["transformed"]


def _plain(name: str) -> str:
    """A name as skl2onnx writes it."""
    return re.sub(r"\W", "_", name)


def _unsupported(message: str) -> str:
    """The class that an error of skl2onnx says it cannot convert, or ""."""
    found = re.search(r"<class '(?:[\w<>]+\.)*(\w+)'>|^(\w+) is not supported", message)
    return next(name for name in found.groups() if name) if found else ""


class _Integers:
    """A container of skl2onnx that takes bools as integers: onnx from 1.19 on takes no bools, and skl2onnx 1.20 writes
    them for histogram gradient boosting."""

    def __init__(self, container: Any) -> None:
        self._container = container

    def __getattr__(self, name: str) -> Any:
        return getattr(self._container, name)

    def add_node(self, kind: str, inputs: Any, outputs: Any, **attributes: Any) -> None:
        tracks = attributes.get("nodes_missing_value_tracks_true")
        if tracks is not None:
            attributes["nodes_missing_value_tracks_true"] = [int(value) for value in tracks]
        self._container.add_node(kind, inputs, outputs, **attributes)


def _integers_only(scope: Any, operator: Any, container: Any) -> None:
    """skl2onnx's own converter of `operator`, with a container that takes its bools."""
    get_converter(operator.type)(scope, operator, _Integers(container))
