"""The vocabulary of ``config.json``: the keys by which families call the same thing; and the names of parts."""

from __future__ import annotations

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
"""How many layers a model has."""
DEPTHS = (*LAYERS, "decoder_layers", "encoder_layers")
"""How many layers a model has, or one of its two stacks."""
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
"""How many heads attention has."""
STREAM_WIDTHS = ("hidden_size", "n_embd", "d_model", "dim")
"""How wide the residual stream of a text model is."""
WIDTHS = (*STREAM_WIDTHS, "embed_dim")
"""How wide the residual stream of any model is."""
POSITIONS = ("max_position_embeddings", "n_positions", "max_sequence_length")
"""How many positions a model has embeddings for."""
VOCABULARY_SIZES = ("vocab_size", "n_words")
"""How many tokens a vocabulary has."""
ROTARY = ("rope_theta", "rope_parameters", "rope_scaling", "rotary_emb_base")
"""How fast rotary positions turn."""
TIE = "tie_word_embeddings"
"""Whether the head is the embeddings."""
MODEL_KINDS = (TIE, "is_encoder_decoder", "is_decoder", "add_cross_attention")
"""What changes the function that a model of any architecture computes."""
LABELS = ("id2label", "label2id")
"""The names of a classifier's labels."""
CLASSIFIER = ("architectures", *LABELS, "num_labels", "problem_type")
"""What describes a classifier's head."""
SILENT = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", *LABELS, "use_cache")
"""Keys that say nothing of a model's function."""
ASIDE = {
    *SILENT,
    "architectures",
    "problem_type",
    "finetuning_task",
    "task_specific_params",
    "gradient_checkpointing",
    "output_past",
}
"""Keys of which no output depends, and in which fine-tunes of one model differ all the same."""
NO_MODEL = ("quantization_config", "compression_config", "generation_config", "backbone_kwargs")
"""Groups of keys that describe no part of a model."""
PARTS = {
    "multi_modal_projector": ("multi_modal_projector.", "visual.merger."),
    "vision_tower": ("vision_tower.", "visual."),
    **{name: (f"{name}.",) for name in ("encoder", "decoder", "vision_model", "text_model", "language_model")},
    **{name: (f"{name}.",) for name in ("audio_tower", "visual")},
    "text_decoder": ("language_model.", "text_model."),
}
"""The parts of models that recipes name as modules, and what is in the names of a part's tensors; the first that
fits a name counts."""
