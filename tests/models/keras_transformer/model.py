"""A transformer block in Keras, its weights drawn from a seed."""

import keras
from keras import layers


def load() -> keras.Model:
    """`[batch, sequence, 32]` to the same: attention of four heads, then two dense layers with the exact GELU."""
    keras.utils.set_random_seed(11)
    tokens = keras.Input((None, 32), name="tokens")
    attended = layers.MultiHeadAttention(num_heads=4, key_dim=8)(tokens, tokens)
    x = layers.LayerNormalization(epsilon=1e-6)(tokens + attended)
    hidden = layers.Dense(64)(x)
    hidden = keras.activations.gelu(hidden, approximate=False)
    states = layers.LayerNormalization(epsilon=1e-6)(x + layers.Dropout(0.1)(layers.Dense(32)(hidden)))
    return keras.Model(tokens, states)
