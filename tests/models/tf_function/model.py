"""A function of TensorFlow with variables: no Keras."""

import tensorflow as tf


class Scorer(tf.Module):  # type: ignore[misc]  # tensorflow ships no types
    """`[batch, 7]` to `[batch, 3]`."""

    def __init__(self) -> None:
        super().__init__()
        generator = tf.random.Generator.from_seed(7)
        self.weights = tf.Variable(generator.normal((7, 3)))
        self.bias = tf.Variable(generator.normal((3,)))

    @tf.function(input_signature=[tf.TensorSpec((None, 7), tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.softplus(x @ self.weights + self.bias)


def load() -> tf.Module:
    return Scorer()
