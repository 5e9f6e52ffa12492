"""How an ONNX model completes its configuration (R72): in the words of Triton's backend. Needs no runtime."""

from halimede.config.model_config import CompletionRules

RULES = CompletionRules(
    not_batching=(
        "autofill failed for model '{model}': model does not support batching while non-zero max_batch_size is "
        "specified"
    ),
    chosen=(
        "autofilled max_batch_size to {limit} for model '{model}' since batching is supporrted but no max_batch_size "
        "is specified in model configuration. Must specify max_batch_size to utilize autofill with a larger max batch "
        "size"
    ),  # "supporrted" is Triton's own spelling
)
