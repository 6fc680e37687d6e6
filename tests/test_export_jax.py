"""JAX as a source: functions, flax and equinox modules; what JAX computes, the graph computes, or it is refused."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onnxmill.tasks.errors import InputError
from onnxmill.tasks.export import SourceSettings
from onnxmill.tasks.export import jax as jax_source
from onnxmill.tasks.export.jax import Jax
from onnxmill.tasks.graph import MODEL
from onnxmill.tasks.proof import Proof
from onnxmill.tasks.reference import Reference
from onnxmill.tasks.spec import Spec, parse
from tests import graphs
from tests.exporting import exported, interface, judged

SOURCE = SourceSettings(framework="jax", loader="net.py:load")

HEAD = """
import jax
import jax.numpy as jnp
import numpy as np

W = jax.random.normal(jax.random.key(5), (4, 4))

def f({arguments}):
    return {value}

def load():
    return f
"""
MLP = """
import jax
import jax.numpy as jnp

def load():
    first, second = jax.random.split(jax.random.key(5))
    w, v = jax.random.normal(first, (4, 8)), jax.random.normal(second, (8, 2))

    @jax.jit
    def mlp(x):
        return jax.nn.softmax(jnp.tanh(x @ w) @ v)

    return mlp
"""
NNX = """
from flax import nnx

class Net(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(4, 8, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.second = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x):
        return self.second(self.dropout(nnx.gelu(self.norm(self.first(x)))))

def load():
    return Net(nnx.Rngs(5))  # as it came from training: with live Dropout
"""
LINEN = """
import flax.linen as nn
import jax
import jax.numpy as jnp

class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.relu(nn.Dense(8)(x)))

def load():
    net = Net()
    return net.bind(net.init(jax.random.key(5), jnp.ones((1, 4))))
"""
CLOSED = (
    LINEN[: LINEN.index("    return net.bind")]
    + """
    params = net.init(jax.random.key(5), jnp.ones((1, 4)))
    return lambda x: net.apply(params, x)
"""
)
EQUINOX = """
import equinox
import jax

def load():
    return jax.vmap(equinox.nn.MLP(4, 2, 8, 1, key=jax.random.key(5)))
"""
CNN = """
from flax import nnx

class Net(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 3, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.linear = nnx.Linear(27, 2, rngs=rngs)

    def __call__(self, image):
        x = nnx.relu(self.norm(self.conv(image)))
        {pool}
        return self.linear(x.reshape(x.shape[0], -1))

def load():
    return Net(nnx.Rngs(5))
"""
POOL = "x = nnx.max_pool(x, window_shape=(2, 2), strides=(2, 2))"
TWO = """
import jax
import jax.numpy as jnp

def load():
    table = jax.random.normal(jax.random.key(5), (10, 4))

    def f(ids, weight):
        rows = table[ids] * weight
        return {"total": rows.sum(axis=1), "rows": rows, "again": rows, "best": jnp.argmax(rows, axis=-1)}

    return f
"""


def code(value: str, arguments: str = "x") -> str:
    return HEAD.format(value=value, arguments=arguments)


def spec(inputs: str = "{x: {shape: [batch, 4]}}", *, outputs: str = "[]", opset: int = 18) -> Spec:
    return parse(f"""
    version: 1
    name: net
    source: {{framework: jax, loader: net.py:load}}
    inputs: {inputs}
    outputs: {outputs}
    opset: {opset}
    """)


def export(folder: Path, text: str, asked: Spec) -> tuple[Reference, Proof]:
    return exported(folder, asked, {"net.py": text})


IMAGE = "{image: {shape: [batch, 6, 6, 1]}}"
IDS = "{ids: {dtype: %s, shape: [batch, length], range: [0, 10]}, weight: {shape: [batch, length, 4]}}"

pytestmark = pytest.mark.integration  # jax2onnx takes some 10 s to import

# --- what is proven ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [MLP, NNX, LINEN, CLOSED, EQUINOX], ids=["mlp", "nnx", "bound", "closed", "equinox"])
def test_functions_and_modules(tmp_path: Path, text: str) -> None:
    _, result = export(tmp_path, text, spec(outputs="[logits]"))
    assert judged(result) == []
    assert (result.opset, result.note, result.findings) == (18, "jax2onnx", ())
    assert interface(tmp_path) == (["x[batch, 4]"], ["logits[batch, 2]"])


def test_a_convolution_in_train_mode_is_exported_from_eval(tmp_path: Path) -> None:
    _, result = export(tmp_path, CNN.replace("{pool}", POOL), spec(IMAGE, opset=21))
    assert judged(result) == []
    assert result.opset == 21
    assert interface(tmp_path) == (["image[batch, 6, 6, 1]"], ["output_0[batch, 2]"])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_outputs_of_a_dict_in_the_order_of_the_spec_one_of_them_twice(tmp_path: Path, dtype: str) -> None:
    reference, result = export(tmp_path, TWO, spec(IDS % dtype, outputs="[total, best, again, rows]"))
    assert judged(result) == []
    assert reference.contract.outputs["best"].dtype == "int32"  # JAX has no int64 unless the loader asks for it
    assert interface(tmp_path) == (
        ["ids[batch, length]", "weight[batch, length, 4]"],
        ["total[batch, 4]", "best[batch, length]", "again[batch, length, 4]", "rows[batch, length, 4]"],
    )


@pytest.mark.parametrize(
    ("value", "arguments", "inputs", "outputs"),
    [
        ("(x, (x * 2, None))", "x", ["x"], ["output_0[batch, 4]", "output_1[batch, 4]"]),
        ("jnp.ones(3), x + 1", "x", ["x"], ["output_0[3]", "output_1[batch, 4]"]),
        ("x @ W", "x, mask", ["x", "mask"], ["output_0[batch, 4]"]),
        ("x - 2 * z", "*, z, x", ["x", "z"], ["output_0[batch, 4]"]),
        ("given['x'] - given['z']", "**given", ["z", "x"], ["output_0[batch, 4]"]),
        ("p - 2 * q", "p, q", ["b", "a"], ["output_0[batch, 4]"]),
        ("jax.lax.cond(x.sum() > 0, lambda v: v * 2, lambda v: v - 1, x)", "x", ["x"], ["output_0[batch, 4]"]),
        ("jax.lax.scan(lambda h, t: (jnp.tanh(h + t), h), jnp.zeros(4), x)[1]", "x", ["x"], ["output_0[batch, 4]"]),
    ],
)
def test_what_functions_take_and_give(
    tmp_path: Path, value: str, arguments: str, inputs: list[str], outputs: list[str]
) -> None:
    asked = spec("{" + ", ".join(f"{name}: {{shape: [batch, 4]}}" for name in inputs) + "}")
    _, result = export(tmp_path, code(value, arguments), asked)
    assert judged(result) == []
    assert interface(tmp_path) == ([f"{name}[batch, 4]" for name in inputs], outputs)


def test_names_that_the_graph_uses_itself(tmp_path: Path) -> None:
    """Inputs and outputs of the names that jax2onnx gives to values of its own."""
    asked = spec("{in_1: {shape: [batch, 4]}, in_0: {shape: [batch, 4]}}", outputs="[mul_out_0, add_out_0]")
    _, result = export(tmp_path, code("(p + 3 * q) + 1, p * q", "p, q"), asked)
    assert judged(result) == []
    assert interface(tmp_path)[0] == ["in_1[batch, 4]", "in_0[batch, 4]"]


@pytest.mark.parametrize(("asked", "given"), [(13, 13), (15, 15), (23, 23)])
def test_other_opsets_are_honoured(tmp_path: Path, asked: int, given: int) -> None:
    _, result = export(tmp_path, MLP, spec(opset=asked))
    assert judged(result) == []
    assert (result.opset, result.note) == (given, "jax2onnx")


def test_a_graph_that_jax2onnx_writes_wrong_below_18_is_written_at_18(tmp_path: Path) -> None:
    _, result = export(tmp_path, code("x - jnp.mean(x, axis=1, keepdims=True)"), spec(opset=15))
    assert judged(result) == []
    assert result.opset == 18
    assert result.note.startswith("jax2onnx at opset 18; not jax2onnx: CON001")


def test_equal_bytes_in_any_folder(tmp_path: Path) -> None:
    for place in ("here", "a much longer/place"):
        export(tmp_path / place, NNX, spec())
    written = [(tmp_path / place / "export/out" / MODEL).read_bytes() for place in ("here", "a much longer/place")]
    assert written[0] == written[1]
    assert str(tmp_path).encode() not in written[0]


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "code_", "where", "message", "fix"),
    [
        (
            "x * 2 if x.sum() > 0 else x - 1",
            "EXP001",
            "control flow",
            "TracerBoolConversionError at net.py:9",
            "lax.cond",
        ),
        ("x[: int(abs(x).sum()) + 1]", "EXP001", "control flow", "depends on an array's values", "jax.numpy.where"),
        ("jnp.asarray(np.asarray(x) * 2)", "EXP001", "control flow", "depends on an array's values", "jax.numpy.where"),
        ("jnp.stack([row * i for i, row in enumerate(x)])", "EXP001", "control flow", "size of a dynamic dim", "vmap"),
        (
            "jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(x.shape, x.dtype), x)",
            "EXP002",
            "pure_callback",
            "no plugin",
            "jax.lax",
        ),
        ("jnp.linalg.eigh(x.T @ x)[0]", "EXP002", "jax2onnx", "eigh currently supports", "source.reference"),
    ],
)
def test_what_cannot_be_exported_is_named(
    tmp_path: Path, value: str, code_: str, where: str, message: str, fix: str
) -> None:
    _, result = export(tmp_path, code(value), spec())
    assert judged(result) == [code_]
    (found,) = result.findings
    assert found.where == where
    assert message in found.message
    assert fix in found.fix
    assert not any((tmp_path / "export/out").iterdir())


def test_arguments_by_position_that_jax2onnx_takes_by_keyword_alone(tmp_path: Path) -> None:
    text = CNN.replace("{pool}", POOL.replace("window_shape=", ""))
    _, result = export(tmp_path, text, spec(IMAGE))
    assert judged(result) == ["EXP001"]
    assert result.findings[0].fix == "give max_pool its arguments by keyword"


def test_a_branch_on_a_size_is_refused_by_values(tmp_path: Path) -> None:
    _, result = export(tmp_path, code("x if x.shape[0] == 3 else x * 2"), spec())
    assert "GATE001" in judged(result)


# --- load and predict -------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    left: Any
    right: Any


@pytest.mark.parametrize(
    ("make", "names", "factors"),
    [
        (lambda x: x, [""], [1]),
        (lambda x: (x, [x * 2, None]), ["", ""], [1, 2]),
        (lambda x: {"b": x * 2, "a": x, "none": None}, ["a", "b"], [1, 2]),
        (lambda x: {"outer": {"z": x, "y": (x * 2,)}}, ["y", "z"], [2, 1]),
        (lambda x: Pair(x, x * 2), ["left", "right"], [1, 2]),
        (lambda x: [x, 3.0], ["", ""], [1, 3]),
    ],
)
def test_predict_flattens_what_a_function_returns(make: Any, names: list[str], factors: list[int]) -> None:
    found = Jax(make).predict({"x": np.ones((1, 2), np.float32)})
    assert [name for name, _ in found] == names
    assert [array.ravel()[0] for _, array in found] == factors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: "text", "dtype must be one of"),
        (lambda x: x.astype(jnp.bfloat16), "'bfloat16': an output's dtype must be one of .* cast it"),
        (lambda x: x * 1j, "'complex64': an output's dtype"),
        (lambda x: jax.random.key(0), "must return arrays"),
    ],
)
def test_predict_refuses_what_is_no_array_of_a_known_dtype(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Jax(make).predict({"x": np.ones((1, 2), np.float32)})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def load(): return None", "returned None"),
        ("def load(): return {'weights': 1}", "must return a function of arrays, or a module; it returned a dict"),
        (NNX.replace("Net(nnx.Rngs(5))", "Net"), "returned the class Net. return an instance"),
        ("def load(): raise RuntimeError('no weights')", r"raised RuntimeError at net\.py:1: no weights"),
    ],
)
def test_a_loader_that_gives_no_function_is_named(tmp_path: Path, text: str, message: str) -> None:
    with graphs.user_code(tmp_path / "source") as folder:
        (folder / "net.py").write_text(text)
        with pytest.raises(InputError, match=message) as raised:
            jax_source.load(SOURCE)
    assert raised.value.key == "source.loader"


def test_a_function_that_does_not_take_the_inputs_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"the model does not take them \(x \[1, 4\]\): TypeError: .*missing 1 required"
    ):
        export(tmp_path, code("x + z", "x, z"), spec())
