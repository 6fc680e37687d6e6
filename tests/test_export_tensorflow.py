"""TensorFlow as a source: Keras models, functions, SavedModels, frozen graphs and TFLite, each exported and proven."""

import gc
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import pytest
import tensorflow as tf

from onnxmill.tasks.errors import InputError
from onnxmill.tasks.export import SourceSettings
from onnxmill.tasks.export import tensorflow as tensorflow_source
from onnxmill.tasks.export.elsewhere import opened
from onnxmill.tasks.export.tensorflow_names import respell
from onnxmill.tasks.export.tensorflow_source import Port, arranged
from onnxmill.tasks.graph import MODEL
from onnxmill.tasks.proof import Proof
from onnxmill.tasks.reference import Reference
from onnxmill.tasks.spec import Spec, parse
from tests import graphs
from tests.exporting import exported, interface, judged

pytestmark = pytest.mark.integration  # importing TensorFlow takes seconds

KERAS = "framework: keras, loader: net.py:load"
FUNCTION = "framework: tensorflow, loader: net.py:load"
X = "{x: {shape: [batch, 4]}}"
IMAGE = "{image: {shape: [batch, 8, 8, 3]}}"

CNN = """
import keras
from keras import layers

def load():
    return keras.Sequential([
        keras.Input((8, 8, 3)), layers.Conv2D(4, 3, activation="relu", bias_initializer="random_normal"),
        layers.BatchNormalization(), layers.Dropout(0.5), layers.MaxPooling2D(), layers.Flatten(), layers.Dense(2),
    ])
"""
TWO = """
import keras

def load():
    first, second = keras.Input((4,), name="first"), keras.Input((4,), name="second")
    both = keras.layers.Dense(3)(first - 2 * second)
    return keras.Model({"second": second, "first": first}, {"zeta": both, "alpha": first * 2, "same": first})
"""
SUBCLASSED = """
import keras

class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense, self.drop = keras.layers.Dense(3), keras.layers.Dropout(0.5)

    def call(self, left, right, training=False):
        return self.drop(self.dense(left) - right, training=training)

def load():
    return Net()
"""
RECURRENT = """
import keras

def load():
    x = keras.Input((None, 5))
    return keras.Model(x, [keras.layers.LSTM(4, return_sequences=True)(x), keras.layers.GRU(3)(x)])
"""
TRANSFORMER = """
import keras
from keras import layers

def gelu(x):
    return keras.activations.gelu(x, approximate=False)

def load():
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = layers.Embedding(20, 16)(ids)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8)(x, x))
    x = layers.LayerNormalization()(x + layers.Dense(16)(layers.Dense(32, activation=gelu)(x)))
    return keras.Model(ids, layers.Dense(3)(x[:, 0]))
"""
MODULE = """
import tensorflow as tf

class Net(tf.Module):
    def __init__(self):
        self.w = tf.Variable(tf.random.stateless_normal([4, 3], [5, 6]))

    def __call__(self, x, scale, mask=None):
        {body}

def load():
    return Net()
"""


def spec(source: str, inputs: str, *, outputs: str = "[]", opset: int = 18) -> Spec:
    return parse(f"""
    version: 1
    name: net
    source: {{{source}}}
    inputs: {inputs}
    outputs: {outputs}
    opset: {opset}
    """)


def export(folder: Path, asked: Spec, files: Mapping[str, str | bytes] | str) -> tuple[Reference, Proof]:
    return exported(folder, asked, {"net.py": files} if isinstance(files, str) else files)


def proven(result: Proof) -> bool:
    assert judged(result) == [], graphs.shown(result)
    return bool(result.parity) and not result.findings


def packed(folder: Path, name: str) -> dict[str, bytes]:
    """The files of a SavedModel's folder under `name`."""
    return {f"{name}/{p.relative_to(folder).as_posix()}": p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# --- Keras -----------------------------------------------------------------------------------------------------------


def test_a_sequential_cnn_keeps_its_layout_and_exports_inference(tmp_path: Path) -> None:
    _, result = export(tmp_path, spec(KERAS, IMAGE, outputs="[logits]"), CNN)
    assert proven(result)
    assert (result.opset, result.note) == (18, "tf2onnx")
    assert interface(tmp_path) == (["image[batch, 8, 8, 3]"], ["logits[batch, 2]"])
    assert "Dropout" not in graphs.ops(tmp_path / "export/out")


@pytest.mark.parametrize("opset", [13, 21])
def test_nchw_on_request_at_any_opset(tmp_path: Path, opset: int) -> None:
    asked = spec(f"{KERAS}, nchw: [image]", "{image: {shape: [batch, 3, 8, 8]}}", outputs="[logits]", opset=opset)
    _, result = export(tmp_path, asked, CNN)
    assert proven(result)
    assert result.opset == min(opset, 18)  # the pin step goes on from there
    assert interface(tmp_path)[0] == ["image[batch, 3, 8, 8]"]
    assert graphs.ops(tmp_path / "export/out")[0] == "Conv"  # no layout change before it


def test_two_inputs_and_outputs_by_name_in_the_order_of_the_spec(tmp_path: Path) -> None:
    inputs = "{second: {shape: [batch, 4]}, first: {shape: [batch, 4]}}"
    _, result = export(tmp_path, spec(KERAS, inputs, outputs="[same, zeta, alpha]", opset=15), TWO)
    assert proven(result)
    assert interface(tmp_path) == (
        ["second[batch, 4]", "first[batch, 4]"],
        ["same[batch, 4]", "zeta[batch, 3]", "alpha[batch, 4]"],
    )


def test_a_subclassed_model_takes_other_names_by_position(tmp_path: Path) -> None:
    inputs = "{a: {shape: [batch, 4]}, b: {shape: [batch, 3]}}"
    _, result = export(tmp_path, spec(KERAS, inputs, outputs="[y]"), SUBCLASSED)
    assert proven(result)
    assert interface(tmp_path) == (["a[batch, 4]", "b[batch, 3]"], ["y[batch, 3]"])


@pytest.mark.parametrize(
    ("body", "built"),
    [('x["a"] - 2 * x["b"]', '{"b": ones, "a": ones}'), ("x[0] - 2 * x[1]", "[ones, ones]")],
)
def test_a_subclassed_model_of_one_argument_is_called_as_it_was_built(tmp_path: Path, body: str, built: str) -> None:
    head = SUBCLASSED.partition("    def call")[0]
    code = f"{head}    def call(self, x):\n        return self.dense({body})\n\ndef load():\n"
    code += f"    net, ones = Net(), keras.ops.ones((1, 4))\n    net({built})\n    return net\n"
    _, result = export(tmp_path, spec(KERAS, "{a: {shape: [batch, 4]}, b: {shape: [batch, 4]}}"), code)
    assert proven(result)


def test_recurrent_layers_at_lengths_that_were_not_traced(tmp_path: Path) -> None:
    _, result = export(tmp_path, spec(KERAS, "{x: {shape: [batch, time, 5]}}", outputs="[all, last]"), RECURRENT)
    assert proven(result)
    assert interface(tmp_path)[1] == ["all[batch, time, 4]", "last[batch, 3]"]


def test_a_transformer_with_exact_gelu(tmp_path: Path) -> None:
    inputs = "{ids: {dtype: int32, shape: [batch, length], range: [0, 20]}}"
    _, result = export(tmp_path, spec(KERAS, inputs, outputs="[logits]"), TRANSFORMER)
    assert proven(result)
    assert "Erf" in graphs.ops(tmp_path / "export/out")
    assert result.parity
    assert max(output.max_rel or 0 for output in result.parity.outputs) < 1e-5


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_a_file_of_keras(tmp_path: Path, suffix: str) -> None:
    keras.utils.set_random_seed(3)
    layers = [keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(2)]
    keras.Sequential(layers).save(tmp_path / f"net{suffix}")
    asked = spec(f"framework: keras, path: net{suffix}", X, outputs="[y]")
    _, result = export(tmp_path, asked, {f"net{suffix}": (tmp_path / f"net{suffix}").read_bytes()})
    assert proven(result)
    assert interface(tmp_path) == (["x[batch, 4]"], ["y[batch, 2]"])


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_code_in_a_file_of_keras_does_not_run(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [keras.Input((4,)), keras.layers.Lambda(lambda x: x * 2, output_shape=(4,))]
    keras.Sequential(layers).save(tmp_path / f"net{suffix}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"Lambda.*needs a `loader:`") as raised:
        tensorflow_source.load(SourceSettings(framework="keras", path=f"net{suffix}"))
    assert raised.value.key == "source.path"


LAYERS = """
import keras

def load():
    keras.utils.clear_session()  # as in a process of its own
    x = keras.Input((None, 5))
    y = x + keras.layers.MultiHeadAttention(2, 4)(x, x)
    return keras.Model(x, [keras.layers.LSTM(4, return_sequences=True)(y), keras.layers.GRU(3)(y)])
"""


def written(folder: Path, python: str) -> bytes:
    asked = spec(KERAS, "{x: {shape: [batch, time, 5]}}", outputs="[all, last]")
    with graphs.user_code(folder) as code:
        (code / "net.py").write_text(LAYERS)
        with opened(SourceSettings(framework="keras", loader="net.py:load"), python) as source:
            assert source.write("tf2onnx", asked.contract, 18, code / MODEL) == []
    return (folder / MODEL).read_bytes()


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    """tf2onnx names things by counters and addresses, and merges what is equal in the order of a set of names."""
    assert written(tmp_path / "1", "") == written(tmp_path / "2", "")


@pytest.mark.full
def test_processes_of_other_hash_seeds_write_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = set()
    for seed in ("1", "2", "3"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        files.add(written(tmp_path / seed, sys.executable))
    assert len(files) == 1


@pytest.mark.parametrize("content", [b"", b"no archive"])
@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_a_corrupt_file_of_keras(tmp_path: Path, suffix: str, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"net{suffix}").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="cannot load it safely") as raised:
        tensorflow_source.load(SourceSettings(framework="keras", path=f"net{suffix}"))
    assert raised.value.key == "source.path"


# --- functions -------------------------------------------------------------------------------------------------------


def test_a_module_with_an_input_that_is_not_used_and_an_output_twice(tmp_path: Path) -> None:
    inputs = "{x: {shape: [batch, 4]}, mask: {shape: [batch]}, scale: {shape: []}}"
    code = MODULE.format(body="y = tf.matmul(x * scale, self.w); return y, (x, y)")
    _, result = export(tmp_path, spec(FUNCTION, inputs, outputs="[a, b, Mul]"), code)
    assert proven(result)
    assert interface(tmp_path) == (
        ["x[batch, 4]", "mask[batch]", "scale[]"],
        ["a[batch, 3]", "b[batch, 4]", "Mul[batch, 3]"],  # the last as tf2onnx would call a node
    )


@pytest.mark.parametrize(
    "loader",
    [
        "def load():\n    return tf.function(lambda x: tf.where(x > 0, tf.math.erfc(x), tf.math.erf(x)))",
        "def load():\n    return tf.function(tf.math.erfc).get_concrete_function(tf.TensorSpec([None, 4], name='x'))",
    ],
)
def test_functions_and_concrete_functions(tmp_path: Path, loader: str) -> None:
    _, result = export(tmp_path, spec(FUNCTION, X), f"import tensorflow as tf\n\n{loader}\n")
    assert proven(result)
    assert "Erf" in graphs.ops(tmp_path / "export/out")


def test_control_flow_on_values_becomes_a_part_of_the_graph(tmp_path: Path) -> None:
    code = MODULE.format(body="return x * 2 if tf.reduce_sum(x) > scale else x - 1")
    _, result = export(tmp_path, spec(FUNCTION, "{x: {shape: [batch, 4]}, scale: {shape: []}}"), code)
    assert proven(result)
    assert "If" in graphs.ops(tmp_path / "export/out")


def test_a_size_that_was_baked_in_is_refused(tmp_path: Path) -> None:
    code = MODULE.format(body="return x * (2.0 if x.shape[0] == 3 else 1.0) * scale")
    _, result = export(tmp_path, spec(FUNCTION, "{x: {shape: [batch, 4]}, scale: {shape: []}}"), code)
    assert "GATE001" in judged(result)


@pytest.mark.parametrize(
    ("body", "code", "where"),
    [
        ("return tf.raw_ops.MatrixInverse(input=x) * scale", "EXP002", "MatrixInverse"),
        ("return tf.math.igamma(x, x) + tf.linalg.inv(x)", "EXP002", "Igamma, MatrixInverse"),
        ("return tf.cast(tf.strings.length(tf.strings.as_string(x)), tf.float32)", "EXP003", "StringLength"),
    ],
)
def test_what_tf2onnx_lacks_is_refused_by_name(tmp_path: Path, body: str, code: str, where: str) -> None:
    inputs = "{x: {shape: [batch, 3, 3], range: [0.5, 2]}, scale: {shape: []}}"
    _, result = export(tmp_path, spec(FUNCTION, inputs), MODULE.format(body=body))
    assert judged(result) == [code]
    assert result.findings[0].where == where
    assert not any((tmp_path / "export/out").iterdir())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return tf.strings.as_string(x)", "the model gives strings"),
        ("return {'y': 'text'}", "must return tensors"),
    ],
)
def test_outputs_that_are_no_numbers(tmp_path: Path, body: str, message: str) -> None:
    asked = spec(FUNCTION, "{x: {shape: [batch, 4]}, scale: {shape: []}}")
    with pytest.raises(InputError, match=message):
        export(tmp_path, asked, MODULE.format(body=body))


@pytest.mark.parametrize(
    ("framework", "code", "message"),
    [
        ("keras", "def load(): return 3", r"must return a keras\.Model; it returned a int"),
        ("keras", "import tensorflow as tf\ndef load(): return tf.Module()", r"must return a keras\.Model"),
        ("tensorflow", "import tensorflow as tf\ndef load(): return tf.Module()", "with __call__"),
    ],
)
def test_a_loader_that_gives_no_model(tmp_path: Path, framework: Any, code: str, message: str) -> None:
    with graphs.user_code(tmp_path / "source") as folder:
        (folder / "net.py").write_text(code)
        with pytest.raises(InputError, match=message) as raised:
            tensorflow_source.load(SourceSettings(framework=framework, loader="net.py:load"))
    assert raised.value.key == "source.loader"


# --- SavedModels and graphs ------------------------------------------------------------------------------------------


class Two(tf.Module):  # type: ignore[misc]  # TensorFlow ships no types
    """Two signatures over one variable."""

    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable(tf.random.stateless_normal([4, 3], [5, 6]))

    @tf.function(input_signature=[tf.TensorSpec([None, 4], name="x")])
    def classify(self, x: Any) -> Any:
        y = tf.matmul(x, self.w)
        return {"probabilities": tf.nn.softmax(y), "logits": y}

    @tf.function(input_signature=[tf.TensorSpec([None, 4], name="x"), tf.TensorSpec([None], name="scale")])
    def scaled(self, x: Any, scale: Any) -> Any:
        return {"y": tf.matmul(x, self.w) * scale[:, None]}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder, model = tmp_path_factory.mktemp("saved"), Two()
    tf.saved_model.save(model, str(folder), signatures={"serving_default": model.classify, "scaled": model.scaled})
    del model
    gc.collect()  # its functions are known to the process by their names, which the file has, too
    return packed(folder, "net")


SAVED = "framework: tensorflow, path: net"


def test_a_saved_model_by_its_default_signature(tmp_path: Path, saved: dict[str, bytes]) -> None:
    _, result = export(tmp_path, spec(SAVED, X, outputs="[probabilities, logits]"), saved)
    assert proven(result)
    assert interface(tmp_path) == (["x[batch, 4]"], ["probabilities[batch, 3]", "logits[batch, 3]"])


def test_another_signature_of_a_saved_model(tmp_path: Path, saved: dict[str, bytes]) -> None:
    inputs = "{scale: {shape: [batch]}, x: {shape: [batch, 4]}}"
    _, result = export(tmp_path, spec(f"{SAVED}, signature: scaled", inputs, outputs="[result]"), saved)
    assert proven(result)
    assert interface(tmp_path) == (["scale[batch]", "x[batch, 4]"], ["result[batch, 3]"])


def test_a_signature_that_is_not_there(tmp_path: Path, saved: dict[str, bytes]) -> None:
    with pytest.raises(InputError, match=r"'scale': is not in.*\['scaled', 'serving_default'\]") as raised:
        export(tmp_path, spec(f"{SAVED}, signature: scale", X), saved)
    assert raised.value.key == "source.signature"


def test_a_signature_of_what_has_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is for a SavedModel or a TFLite file") as raised:
        export(tmp_path, spec(f"{FUNCTION}, signature: scaled", X), MODULE.format(body="return x"))
    assert raised.value.key == "source.signature"


@pytest.mark.parametrize(
    "lost", ["saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001"]
)
def test_a_saved_model_with_a_file_missing_or_corrupt(tmp_path: Path, saved: dict[str, bytes], lost: str) -> None:
    for number, content in enumerate((None, b"junk" * 9)):
        files = {name: data for name, data in saved.items() if name != f"net/{lost}"}
        files |= {f"net/{lost}": content} if content else {}
        with pytest.raises(InputError, match="is no SavedModel that TensorFlow can load") as raised:
            export(tmp_path / str(number), spec(SAVED, X), files)
        assert raised.value.key == "source.path"
        assert str(tmp_path) not in str(raised.value)


@pytest.mark.parametrize("resource", [True, False])
def test_what_tensorflow_1_saved_and_its_frozen_graph(tmp_path: Path, resource: bool) -> None:
    with tf.Graph().as_default() as whole, tf.compat.v1.Session(graph=whole) as session:
        x = tf.compat.v1.placeholder(tf.float32, [None, 4], name="x")
        start = tf.constant(np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3))
        y = tf.nn.relu(x @ tf.compat.v1.get_variable("w", initializer=start, use_resource=resource), name="y")
        session.run(tf.compat.v1.global_variables_initializer())
        builder = tf.compat.v1.saved_model.Builder(str(tmp_path / "net"))
        signature = tf.compat.v1.saved_model.predict_signature_def({"image": x}, {"score": y})
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()
        live = whole.as_graph_def()
        frozen = tf.compat.v1.graph_util.convert_variables_to_constants(session, live, ["y"])
    _, result = export(tmp_path / "saved", spec(SAVED, "{image: {shape: [batch, 4]}}"), packed(tmp_path / "net", "net"))
    assert proven(result)
    assert interface(tmp_path / "saved") == (["image[batch, 4]"], ["score[batch, 3]"])
    graph = "framework: tensorflow, path: net.pb"
    _, result = export(tmp_path / "frozen", spec(graph, X), {"net.pb": frozen.SerializeToString()})
    assert proven(result)
    assert interface(tmp_path / "frozen") == (["x[batch, 4]"], ["y[batch, 3]"])
    with pytest.raises(InputError, match=r"is not frozen: it has variables \['w'\]"):
        export(tmp_path / "live", spec(graph, X), {"net.pb": live.SerializeToString()})


@pytest.mark.parametrize("content", [b"", b"\x99 is no graph"])
def test_a_file_that_is_no_graph(tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.pb").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="frozen graph") as raised:
        tensorflow_source.load(SourceSettings(framework="tensorflow", path="net.pb"))
    assert raised.value.key == "source.path"


# --- TFLite ----------------------------------------------------------------------------------------------------------

LITE = "framework: tflite, path: net.tflite"


def lite(*, half: bool = False, integers: bool = False) -> bytes:
    """An image model with GELU, one exact and one approximate."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential([
        keras.Input((8, 8, 3), name="photo"), keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.Flatten(),
        keras.layers.Dense(8, activation=lambda x: keras.activations.gelu(x, approximate=False)),
        keras.layers.Dense(8, activation=lambda x: keras.activations.gelu(x, approximate=True)), keras.layers.Dense(2),
    ])  # fmt: skip
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    if half or integers:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if half:
        converter.target_spec.supported_types = [tf.float16]
    if integers:
        converter.representative_dataset = lambda: ([graphs.normal((1, 8, 8, 3), seed)] for seed in range(8))
    content: bytes = converter.convert()
    return content


@pytest.mark.parametrize("half", [False, True])
def test_tflite_in_float_and_with_weights_in_float16(tmp_path: Path, half: bool) -> None:
    _, result = export(tmp_path, spec(LITE, IMAGE, outputs="[logits]"), {"net.tflite": lite(half=half)})
    assert proven(result)
    assert interface(tmp_path) == (["image[batch, 8, 8, 3]"], ["logits[batch, 2]"])
    assert graphs.ops(tmp_path / "export/out").count("Erf") == 1


def test_tflite_as_nchw(tmp_path: Path) -> None:
    asked = spec(f"{LITE}, nchw: [image]", "{image: {shape: [batch, 3, 8, 8]}}")
    _, result = export(tmp_path, asked, {"net.tflite": lite()})
    assert proven(result)
    assert graphs.ops(tmp_path / "export/out")[0] == "Conv"


def test_quantized_tflite_is_proven_or_refused_by_values(tmp_path: Path) -> None:
    _, result = export(tmp_path, spec(LITE, IMAGE), {"net.tflite": lite(integers=True)})
    assert "QuantizeLinear" in graphs.ops(tmp_path / "export/out")
    assert judged(result) in ([], ["GATE001"])


def test_signatures_of_tflite(tmp_path: Path) -> None:
    model = Two()
    functions = [getattr(model, name).get_concrete_function() for name in ("classify", "scaled")]
    one = tf.lite.TFLiteConverter.from_concrete_functions(functions[:1], model).convert()
    _, result = export(tmp_path / "one", spec(LITE, X, outputs="[probabilities, logits]"), {"net.tflite": one})
    assert proven(result)
    assert interface(tmp_path / "one")[1] == ["probabilities[batch, 3]", "logits[batch, 3]"]
    folder = str(tmp_path / "both")
    tf.saved_model.save(model, folder, signatures={"serving_default": model.classify, "scaled": model.scaled})
    both = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=["serving_default", "scaled"]).convert()
    for signature, message in (("other", r"\['scaled', 'serving_default'\]"), ("serving_default", "main graph")):
        with pytest.raises(InputError, match=message) as raised:
            export(tmp_path / signature, spec(f"{LITE}, signature: {signature}", X), {"net.tflite": both})
        assert raised.value.key == "source.signature"


@pytest.mark.parametrize("kept", [0, 3, 500, 0.5, 0.9])
def test_a_tflite_file_that_was_cut_off(tmp_path: Path, kept: float, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = lite()
    (tmp_path / "net.tflite").write_bytes(whole[: int(kept * len(whole)) if 0 < kept < 1 else int(kept)])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="is no TFLite file") as raised:
        tensorflow_source.load(SourceSettings(framework="tflite", path="net.tflite"))
    assert raised.value.key == "source.path"


# --- inputs ----------------------------------------------------------------------------------------------------------

PORTS = (Port("a", "float32", (None, 4)), Port("b", "int32", None), Port("c", required=False))
A, B = np.ones((2, 4), np.float32), np.ones(3, np.int32)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"a": A, "b": B}, ["a", "b"]),
        ({"b": B, "a": A, "c": A}, ["a", "b", "c"]),
        ({"x": A, "y": B}, ["a", "b"]),
        ({"a": A, "y": B, "z": A}, ["a", "b", "c"]),
    ],
)
def test_inputs_by_name_or_else_by_place(given: dict[str, Any], found: list[str]) -> None:
    result = arranged(PORTS, given)
    assert list(result) == found
    assert result["a"] is A
    assert result["b"] is B


@pytest.mark.parametrize(
    "given",
    [
        {"a": A},
        {"a": A, "b": B, "c": A, "d": A},
        {"y": B, "a": A},  # known, in another place
        {"a": A.astype(np.float64), "b": B},
        {"a": np.ones((2, 5), np.float32), "b": B},
        {"a": np.ones(4, np.float32), "b": B},
        {"x": B, "y": A},
    ],
)
def test_inputs_that_differ_name_both_sides(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"the model takes \['a float32\[\?, 4\]', 'b int32', 'c'\]") as raised:
        arranged(PORTS, given)
    assert raised.value.key == "inputs"
    assert all(f"{name} {array.dtype}[" in str(raised.value.value) for name, array in given.items())


def test_wrong_inputs_of_a_model_name_both_sides(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"image float32\[1, 3, 8, 8\].*the model takes .*float32\[\?, 8, 8, 3\]"):
        export(tmp_path, spec(KERAS, "{image: {shape: [batch, 3, 8, 8]}}"), CNN)


def test_nchw_is_for_images(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has 2 axes") as raised:
        export(tmp_path, spec(f"{FUNCTION}, nchw: [x]", X), MODULE.format(body="return x"))
    assert raised.value.key == "source.nchw"


# --- names -----------------------------------------------------------------------------------------------------------


def test_order_and_names_depend_on_the_graph_alone() -> None:
    first = graphs.parse("""agraph (float[batch, 2] x__7) => (float[batch, 2] y) <float[2, 2] w__3 = {1, 2, 3, 4}> {
        [Abs__1] a__1 = Abs(x__7) ["layer/MatMul__12"] m = MatMul(a__1, w__3)
        [Neg__9] n = Neg(x__7) [Add__3] y = Add(m, n)
    }""")
    second = graphs.parse("""agraph (float[n, 2] x__7) => (float[n, 2] y) <float[2, 2] v = {1, 2, 3, 4}> {
        [Neg__4] p = Neg(x__7) [Abs__3] b = Abs(x__7)
        ["layer/MatMul__2"] q = MatMul(b, v) [Add__99] y = Add(q, p)
    }""")
    for model in (first, second):
        respell(model, {"x__7": "Neg_0"}, ["out"])
    assert first == second
    assert [node.name for node in first.graph.node] == ["Abs", "layer/MatMul", "Neg", "Add"]
    assert list(first.graph.node[2].output) == ["Neg_0_2"]  # Neg_0 is the input
    onnx.checker.check_model(first, full_check=True)
