"""MiniLM-L6 as sentence-transformers uses it: BERT, the mean over the tokens, length 1."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import BertConfig, BertModel

HERE = Path(__file__).parent


class SentenceEncoder(nn.Module):
    """Token ids, mask and types, each `[batch, sequence]` int64, to `[batch, 384]` vectors of length 1."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        states = self.bert(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        weights = attention_mask.unsqueeze(-1).to(torch.float32)
        mean = (states.last_hidden_state * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)
        return nn.functional.normalize(mean, dim=1)


def load() -> SentenceEncoder:
    """The encoder with its published weights."""
    bert = BertModel(BertConfig.from_json_file(HERE / "config.json"), add_pooling_layer=False)
    weights = load_file(HERE / "model.safetensors")
    # the pooler is of BERT's own training, and the positions 0, 1, 2, ... are made by the class
    unused = ("pooler.", "embeddings.position_ids")
    bert.load_state_dict({name: value for name, value in weights.items() if not name.startswith(unused)})
    return SentenceEncoder(bert)
