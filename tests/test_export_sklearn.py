"""scikit-learn as a source: what an estimator decides, its ONNX graph decides as well; or it is refused by name."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from sklearn.preprocessing import StandardScaler

from onnxmill.tasks.errors import InputError
from onnxmill.tasks.export import SourceSettings
from onnxmill.tasks.export import sklearn as sklearn_source
from onnxmill.tasks.export.sklearn import Estimator
from onnxmill.tasks.graph import MODEL
from onnxmill.tasks.proof import Proof
from onnxmill.tasks.reference import Reference
from onnxmill.tasks.spec import Spec, parse
from tests import graphs
from tests.exporting import exported, interface, judged

SOURCE = SourceSettings(framework="sklearn", loader="net.py:load")

HEAD = """
import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
{imports}

def digits():
    X, y = load_digits(return_X_y=True)
    return X[:600], y[:600]

def cancer():
    return load_breast_cancer(return_X_y=True)

def named():
    X, y = cancer()
    return X, np.array(["malignant", "benign"])[y]

def scaled():
    X, y = digits()
    return X / 16, y

def diabetes():
    return load_diabetes(return_X_y=True)

def two():
    X, y = diabetes()
    return X, np.c_[y, -2 * y]

def load():
    X, y = {data}()
    return ({model}).fit(X, y)
"""
MODULES = {
    **dict.fromkeys(("RandomForestClassifier", "RandomForestRegressor", "ExtraTreesClassifier"), "ensemble"),
    **dict.fromkeys(("GradientBoostingClassifier", "GradientBoostingRegressor", "VotingClassifier"), "ensemble"),
    **dict.fromkeys(("HistGradientBoostingClassifier", "HistGradientBoostingRegressor", "IsolationForest"), "ensemble"),
    **dict.fromkeys(("LogisticRegression", "LinearRegression", "Ridge", "RidgeClassifier"), "linear_model"),
    **dict.fromkeys(("SVC", "SVR", "LinearSVC"), "svm"),
    **dict.fromkeys(("KMeans", "DBSCAN"), "cluster"),
    "KNeighborsClassifier": "neighbors",
    "MLPClassifier": "neural_network",
    "DecisionTreeClassifier": "tree",
    "PCA": "decomposition",
    **dict.fromkeys(("Normalizer", "PowerTransformer"), "preprocessing"),
    "MultiOutputRegressor": "multioutput",
    "TransformedTargetRegressor": "compose",
    "GridSearchCV": "model_selection",
}
COLUMNS = {"digits": 64, "scaled": 64, "cancer": 30, "named": 30, "diabetes": 10, "two": 10}
RANGES = {"digits": "[0, 16]", "scaled": "[0, 1]", "cancer": "[0, 100]", "named": "[0, 100]"}


def code(model: str, data: str) -> str:
    """A loader that fits `model`, whose classes are imported by their names."""
    names = set(re.findall(r"\b([A-Z]\w+)\(", model)) - {"StandardScaler"}
    imports = [f"from sklearn.{MODULES[name]} import {name}" for name in sorted(names)]
    return HEAD.format(imports="\n".join(imports), data=data, model=model)


def spec(data: str, *, dtype: str = "float32", outputs: str = "[]", opset: int = 18, inputs: str = "") -> Spec:
    one = f"{{x: {{dtype: {dtype}, shape: [batch, {COLUMNS[data]}], range: {RANGES.get(data, '[-0.1, 0.1]')}}}}}"
    return parse(f"""
    version: 1
    name: estimator
    source: {{framework: sklearn, loader: net.py:load}}
    inputs: {inputs or one}
    outputs: {outputs}
    dims: {{batch: [1, 20]}}
    opset: {opset}
    """)


def export(folder: Path, text: str, asked: Spec) -> tuple[Reference, Proof]:
    return exported(folder, asked, {"net.py": text})


def published(folder: Path) -> onnx.ModelProto:
    return onnx.load(str(folder / "export/out" / MODEL))


# --- what is proven ---------------------------------------------------------------------------------------------------

CLASSIFIERS = [
    ("RandomForestClassifier(20, random_state=0)", "digits", 10),
    ("ExtraTreesClassifier(20, random_state=0)", "digits", 10),
    ("GradientBoostingClassifier(n_estimators=10, random_state=0)", "cancer", 2),
    ("HistGradientBoostingClassifier(max_iter=10, random_state=0)", "cancer", 2),
    ("LogisticRegression(max_iter=20)", "scaled", 10),
    ("SVC(probability=True, random_state=0)", "scaled", 10),
    ("KNeighborsClassifier()", "digits", 10),
    ("MLPClassifier((16,), max_iter=30, random_state=0)", "scaled", 10),
    ("make_pipeline(StandardScaler(), PCA(10, random_state=0), LogisticRegression())", "digits", 10),
    ("GridSearchCV(LogisticRegression(max_iter=10), {'C': [1, 2]}, cv=2)", "scaled", 10),
]
REGRESSORS = [
    ("LinearRegression()", "diabetes", 1),
    ("LinearRegression()", "two", 2),
    ("Ridge()", "two", 2),
    ("RandomForestRegressor(10, random_state=0)", "two", 2),
    ("MultiOutputRegressor(GradientBoostingRegressor(n_estimators=10, random_state=0))", "two", 2),
    ("HistGradientBoostingRegressor(max_iter=10, random_state=0)", "diabetes", 1),
    ("make_pipeline(StandardScaler(), SVR())", "diabetes", 1),
]


@pytest.mark.integration
@pytest.mark.parametrize(("model", "data", "classes"), CLASSIFIERS)
def test_a_classifier_gives_labels_and_probabilities(tmp_path: Path, model: str, data: str, classes: int) -> None:
    reference, result = export(tmp_path, code(model, data), spec(data))
    assert judged(result) == []
    assert (result.opset, result.note) == (18, "skl2onnx")
    assert interface(tmp_path) == (
        [f"x[batch, {COLUMNS[data]}]"],
        ["label[batch]", f"probabilities[batch, {classes}]"],
    )
    assert reference.contract.outputs["probabilities"].dtype == "float32"
    assert result.parity
    assert result.parity.outputs[0].max_abs == 0  # not one label differs
    assert "ZipMap" not in graphs.ops(tmp_path / "export/out")


@pytest.mark.integration
@pytest.mark.parametrize(("model", "data", "targets"), REGRESSORS)
def test_a_regressor_gives_a_column_for_each_target(tmp_path: Path, model: str, data: str, targets: int) -> None:
    _, result = export(tmp_path, code(model, data), spec(data))
    assert judged(result) == []
    assert interface(tmp_path)[1] == [f"variable[batch, {targets}]"]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("model", "data", "outputs"),
    [
        ("SVC()", "scaled", ["label[batch]", "scores[batch, 10]"]),
        ("make_pipeline(StandardScaler(), SVC())", "named", ["label[batch]", "scores[batch, 1]"]),
        ("make_pipeline(StandardScaler(), LinearSVC())", "cancer", ["label[batch]", "scores[batch, 1]"]),
        ("make_pipeline(StandardScaler(), RidgeClassifier())", "named", ["label[batch]", "scores[batch, 1]"]),
        ("make_pipeline(StandardScaler(), KMeans(3, random_state=0))", "cancer", ["label[batch]", "scores[batch, 3]"]),
        ("IsolationForest(n_estimators=10, random_state=0)", "diabetes", ["label[batch]", "scores[batch, 1]"]),
        ("make_pipeline(StandardScaler(), PCA(3))", "cancer", ["transformed[batch, 3]"]),
    ],
)
def test_scores_clusters_outliers_and_transformers(tmp_path: Path, model: str, data: str, outputs: list[str]) -> None:
    _, result = export(tmp_path, code(model, data), spec(data))
    assert judged(result) == []
    assert interface(tmp_path)[1] == outputs


@pytest.mark.integration
@pytest.mark.parametrize("opset", [13, 15, 21, 23])
def test_other_opsets_are_asked_for_as_far_as_skl2onnx_goes(tmp_path: Path, opset: int) -> None:
    model = "make_pipeline(StandardScaler(), PCA(10, random_state=0), LogisticRegression())"
    _, result = export(tmp_path, code(model, "digits"), spec("digits", opset=opset))
    assert judged(result) == []
    assert result.opset == min(opset, 22)


# --- labels and names -------------------------------------------------------------------------------------------------


def test_names_of_classes_become_their_places_and_go_with_the_model(tmp_path: Path) -> None:
    reference, result = export(tmp_path, code("DecisionTreeClassifier(random_state=0)", "named"), spec("named"))
    assert judged(result) == []
    assert reference.contract.outputs["label"].dtype == "int64"
    metadata = {entry.key: entry.value for entry in published(tmp_path).metadata_props}
    assert json.loads(metadata["classes"]) == ["benign", "malignant"]


@pytest.mark.parametrize("labels", ["y.astype(bool)", "y * 2.0 + 1", "y * 4 - 7"])
def test_numbers_as_labels_stay_what_they_are(tmp_path: Path, labels: str) -> None:
    text = code("DecisionTreeClassifier(random_state=0)", "cancer").replace(".fit(X, y)", f".fit(X, {labels})")
    reference, result = export(tmp_path, text, spec("cancer"))
    assert judged(result) == []
    assert reference.contract.outputs["label"].dtype == "int64"
    assert "classes" not in [entry.key for entry in published(tmp_path).metadata_props]


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("[probabilities, label]", ["probabilities[batch, 2]", "label[batch]"]),
        ("[kind, chance]", ["kind[batch]", "chance[batch, 2]"]),
        ("[probability_tensor, output_label]", ["probability_tensor[batch]", "output_label[batch, 2]"]),
    ],
)
def test_outputs_in_the_order_of_the_spec_or_under_names_of_its_own(
    tmp_path: Path, asked: str, given: list[str]
) -> None:
    text = code("DecisionTreeClassifier(random_state=0)", "cancer")
    _, result = export(tmp_path, text, spec("cancer", outputs=asked))
    assert judged(result) == []
    assert interface(tmp_path)[1] == given


def test_equal_bytes_in_any_folder(tmp_path: Path) -> None:
    model = "make_pipeline(StandardScaler(), PCA(3, random_state=0), DecisionTreeClassifier(random_state=0))"
    for place in ("here", "a much longer/place"):
        export(tmp_path / place, code(model, "named"), spec("named"))
    written = [(tmp_path / place / "export/out" / MODEL).read_bytes() for place in ("here", "a much longer/place")]
    assert written[0] == written[1]


# --- columns ----------------------------------------------------------------------------------------------------------

FRAME = """
import numpy as np
import pandas
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

def load():
    rng = np.random.default_rng(3)
    age, income, city = rng.normal(40, 9, 200), rng.normal(3e4, 5e3, 200), rng.integers(0, 3, 200)
    X = pandas.DataFrame({"age": age, "income": income, "city": city})
    columns = ColumnTransformer([("n", StandardScaler(), ["income", "age"]), ("c", OneHotEncoder(), ["city"])])
    return make_pipeline(columns, LogisticRegression()).fit(X, (X.age > 40) ^ (X.city == 1))
"""
PLAIN = """
import numpy as np
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

def load():
    X = np.random.default_rng(3).normal([1, 20, 300], [1, 2, 3], (200, 3))
    return make_pipeline(StandardScaler(), LinearRegression()).fit(X, X @ [3, 2, 1])
"""


def test_inputs_with_the_names_of_columns_in_any_order(tmp_path: Path) -> None:
    inputs = """{city: {dtype: int64, shape: [batch, 1], range: [0, 3]}, age: {shape: [batch, 1], range: [20, 60]},
                 income: {shape: [batch, 1], range: [1e4, 5e4]}}"""
    _, result = export(tmp_path, FRAME, spec("cancer", inputs=inputs))
    assert judged(result) == []
    assert interface(tmp_path)[0] == ["city[batch, 1]", "age[batch, 1]", "income[batch, 1]"]


def test_inputs_without_names_are_columns_as_the_spec_has_them(tmp_path: Path) -> None:
    inputs = "{first: {shape: [batch, 1]}, both others: {shape: [batch, 2]}}"
    _, result = export(tmp_path, PLAIN, spec("cancer", inputs=inputs))
    assert judged(result) == []
    assert interface(tmp_path) == (["first[batch, 1]", "both others[batch, 2]"], ["variable[batch, 1]"])


# --- float64 ----------------------------------------------------------------------------------------------------------

SCALED_TREE = "make_pipeline(StandardScaler(), DecisionTreeClassifier(random_state=0))"


def test_rows_that_float32_decides_otherwise_are_counted(tmp_path: Path) -> None:
    _, result = export(tmp_path, code(SCALED_TREE, "named"), spec("named"))
    assert judged(result) == []
    (warning,) = result.findings
    assert (warning.code, warning.severity, warning.where) == ("EXP004", "warn", "output label")
    assert warning.measured
    assert 0 < warning.measured < 1000
    assert f"{warning.measured:.0f} of 1000 rows on the thresholds of its trees" in warning.message


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        (SCALED_TREE, "float64"),
        ("HistGradientBoostingClassifier(max_iter=5, random_state=0)", "float64"),
        ("DecisionTreeClassifier(random_state=0)", "float32"),  # scikit-learn's trees compare in float32 themselves
        ("DecisionTreeClassifier(random_state=0)", "float64"),
        ("make_pipeline(StandardScaler(), LogisticRegression())", "float32"),
    ],
)
def test_no_row_is_decided_otherwise(tmp_path: Path, model: str, dtype: str) -> None:
    reference, result = export(tmp_path, code(model, "named"), spec("named", dtype=dtype))
    assert judged(result) == []
    assert result.findings == ()
    assert reference.contract.outputs["probabilities"].dtype == dtype


@pytest.mark.integration
@pytest.mark.parametrize(
    ("model", "data"),
    [
        ("RandomForestRegressor(10, random_state=0)", "two"),
        ("GradientBoostingClassifier(n_estimators=10, random_state=0)", "cancer"),
        ("ExtraTreesClassifier(10, random_state=0)", "digits"),
        ("KNeighborsClassifier()", "digits"),
        ("make_pipeline(StandardScaler(), PCA(3), LogisticRegression())", "cancer"),
    ],
)
def test_float64_inputs(tmp_path: Path, model: str, data: str) -> None:
    reference, result = export(tmp_path, code(model, data), spec(data, dtype="float64"))
    assert judged(result) == []
    assert {t.dtype for t in reference.contract.outputs.values()} <= {"float64", "int64"}


def test_an_estimator_that_does_not_take_made_up_rows_is_not_counted(tmp_path: Path) -> None:
    """Box-Cox takes positive values alone, and nothing leads back through Normalizer to such ones."""
    text = code(
        "make_pipeline(PowerTransformer('box-cox'), Normalizer(), DecisionTreeClassifier(random_state=0))", "cancer"
    )
    text = text.replace(".fit(X, y)", ".fit(X + 1, y)")
    inputs = "{x: {shape: [batch, 30], range: [1, 100]}}"
    _, result = export(tmp_path, text, spec("cancer", inputs=inputs))
    assert judged(result) == []
    assert result.findings == ()


# --- what is refused --------------------------------------------------------------------------------------------------

OWN = """
import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

class Doubler(TransformerMixin, BaseEstimator):
    def fit(self, X, y=None):
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X):
        return X * 2

def load():
    X = np.random.default_rng(3).normal(size=(50, 10))
    return make_pipeline({step}, LinearRegression()).fit(X, X.sum(1))
"""


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (OWN.replace("{step}", "Doubler()"), "Doubler"),
        (OWN.replace("{step}", "FunctionTransformer(np.abs)"), "FunctionTransformer"),
        (
            code("TransformedTargetRegressor()", "diabetes"),
            "TransformedTargetRegressor",
        ),
    ],
)
def test_an_estimator_without_a_converter_is_named(tmp_path: Path, text: str, where: str) -> None:
    _, result = export(tmp_path, text, spec("diabetes"))
    assert judged(result) == ["EXP002"]
    assert result.findings[0].where == where
    assert "update_registered_converter" in result.findings[0].fix
    assert not any((tmp_path / "export/out").iterdir())


def test_what_skl2onnx_does_not_do_is_refused_in_its_words(tmp_path: Path) -> None:
    model = "VotingClassifier([('a', DecisionTreeClassifier()), ('b', DecisionTreeClassifier())], voting='soft')"
    _, result = export(tmp_path, code(model, "cancer"), spec("cancer"))
    assert judged(result) == ["EXP001"]
    assert "flatten_transform" in result.findings[0].message


@pytest.mark.integration
def test_values_that_float32_does_not_hold_are_refused(tmp_path: Path) -> None:
    """A linear kernel on features of very different size: its sums cancel."""
    _, result = export(tmp_path, code("SVC(kernel='linear')", "cancer"), spec("cancer"))
    assert "GATE001" in judged(result)


def test_a_dtype_that_skl2onnx_does_not_take_is_named(tmp_path: Path) -> None:
    asked = spec("cancer", inputs="{x: {dtype: uint8, shape: [batch, 30], range: [0, 9]}}")
    _, result = export(tmp_path, code("DecisionTreeClassifier(random_state=0)", "cancer"), asked)
    assert judged(result) == ["EXP003"]
    assert "input x" in result.findings[0].where


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("{x: {shape: [batch, 29]}}", r"inputs\.x\.shape: \[\[1, 29\]\]: 29 columns; the estimator was fitted on 30"),
        ("{x: {shape: [batch, 20]}, z: {shape: [batch, 11]}}", "31 columns; the estimator was fitted on 30"),
        ("{x: {shape: [batch, 30, 1]}}", r"must be \[batch, number of columns\]"),
    ],
)
def test_a_wrong_number_of_columns_is_named(tmp_path: Path, inputs: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        export(tmp_path, code("DecisionTreeClassifier()", "cancer"), spec("cancer", inputs=inputs))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def load(): return {'weights': 1}", "must return a scikit-learn estimator; it returned a dict"),
        ("from sklearn.svm import SVC\ndef load(): return SVC", "it returned a ABCMeta"),
        ("from sklearn.svm import SVC\ndef load(): return SVC()", "returned a SVC that is not fitted. call fit"),
        (code("make_pipeline(StandardScaler(), SVC())", "cancer").replace(".fit(X, y)", ""), "Pipeline that is not"),
        (code("DecisionTreeClassifier()", "two"), "DecisionTreeClassifier predicts several labels at once"),
        (code("DBSCAN()", "cancer"), "DBSCAN neither predicts"),
        ("def load(): raise ValueError('no file')", r"raised ValueError at net\.py:1: no file"),
    ],
)
def test_a_loader_that_gives_no_fitted_estimator_is_named(tmp_path: Path, text: str, message: str) -> None:
    with graphs.user_code(tmp_path / "source") as folder:
        (folder / "net.py").write_text(text)
        with pytest.raises(InputError, match=message) as raised:
            sklearn_source.load(SOURCE)
    assert raised.value.key == "source.loader"


def test_the_input_arrays_are_not_edited() -> None:
    scaler: Any = StandardScaler(copy=False).fit(np.arange(8.0).reshape(4, 2))
    x = np.ones((1, 2))
    Estimator(scaler).predict({"x": x})
    assert x.tolist() == [[1, 1]]
