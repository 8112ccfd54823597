"""Small random checkpoints of the real architecture, for every test that needs a model.

They are made by our own exporter and read by transformers too. Weights are wide enough that a
wrong layer, position or feature moves the logits far beyond any tolerance.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer
from torch import nn

from liveedge.models.qwen3_vl.config import (
    PixelBudget,
    PixelConfig,
    Qwen3VLConfig,
    TextConfig,
    VisionConfig,
)
from liveedge.models.qwen3_vl.export import save
from liveedge.models.qwen3_vl.text import TextModel
from liveedge.models.qwen3_vl.vision import VisionTower

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
WORDS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

IMAGE_BUDGET = PixelBudget(32 * 32, 32 * 32 * 64)  # 64 tokens
VIDEO_BUDGET = PixelBudget(32 * 32, 32 * 32 * 32)

# How the Qwen tokenizers cut text before merging.
WORD_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CORPUS = (
    "Is the door open or closed? The door is open. The lamp is on, the lamp is off.",
    "How many boxes are on the conveyor belt? There are 3 boxes: red, green, blue and yellow.",
    "The person in the red shirt walks in from the left and out to the right.",
    'Answer in JSON: {"door": "open", "lamp": "on", "person": null, "boxes": ["red"]}',
    "<0.5 seconds> <1.0 seconds> <12.3 seconds> You are a helpful assistant. system user\n\n",
    "Grüße aus Köln, 你好世界, emoji 🎥, tabs\tand\r\nline ends.",
)

TEMPLATE = """
{%- macro say(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- else -%}
        {%- for part in content -%}
            {%- if part.type == 'image' -%}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
            {%- elif part.type == 'video' -%}
                {{- '<|vision_start|><|video_pad|><|vision_end|>' -}}
            {%- else -%}
                {{- part.text -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- set own = messages and messages[0].role == 'system' -%}
{%- if tools -%}
    {{- '<|im_start|>system\\n' -}}
    {%- if own -%}{{- say(messages[0].content) + '\\n\\n' -}}{%- endif -%}
    {{- '# Tools\\n<tools>' -}}
    {%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
    {{- '\\n</tools><|im_end|>\\n' -}}
{%- elif own -%}
    {{- '<|im_start|>system\\n' + say(messages[0].content) + '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'tool' -%}
        {{- '<|im_start|>user\\n<tool_response>\\n' + say(message.content) -}}
        {{- '\\n</tool_response><|im_end|>\\n' -}}
    {%- elif message.role != 'system' -%}
        {{- '<|im_start|>' + message.role + '\\n' + say(message.content) -}}
        {%- for call in message.tool_calls or [] -%}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' -}}
            {%- if call.function.arguments is string -%}
                {{- call.function.arguments -}}
            {%- else -%}
                {{- call.function.arguments | tojson -}}
            {%- endif -%}
            {{- '}\\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>\\n' -}}
    {%- elif not loop.first -%}
        {{- raise_exception('a system message must be the first') -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def make_checkpoint(
    folder: Path,
    *,
    seed: int = 0,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 32,
    deepstack: Sequence[int] = (0,),
    tied: bool = True,
    vision_depth: int = 2,
    vision_hidden: int = 48,
    max_position: int = 4096,
    image: PixelBudget = IMAGE_BUDGET,
    video: PixelBudget = VIDEO_BUDGET,
) -> Path:
    """Write a complete checkpoint folder, the same one for the same arguments."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    _write_tokenizer(folder, tokenizer)
    vocabulary = tokenizer.get_vocab()
    ids = {token: vocabulary[token] for token in SPECIAL}
    half = head_dim // 2
    config = Qwen3VLConfig(
        text=TextConfig(
            vocab_size=-(-tokenizer.get_vocab_size() // 64) * 64,  # padded, as the real ones are
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            n_layers=layers,
            n_heads=heads,
            n_kv_heads=kv_heads,
            head_dim=head_dim,
            rope_theta=10_000.0,
            mrope_section=(half - 2 * (half // 3), half // 3, half // 3),
            max_position=max_position,
            tied=tied,
        ),
        vision=VisionConfig(
            depth=vision_depth,
            hidden_size=vision_hidden,
            intermediate_size=2 * vision_hidden,
            n_heads=4,
            out_hidden_size=hidden,
            n_positions=36,
            deepstack_layers=tuple(deepstack),
        ),
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    vision, text = VisionTower(config.vision), TextModel(config.text)
    generator = torch.Generator().manual_seed(seed)
    for module in (vision, text):
        _randomise(module, generator)
    save(folder, config, PixelConfig(image=image, video=video), vision, text)
    return folder


def make_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer of a few hundred tokens that reads any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=400,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in WORDS])
    return tokenizer


def _write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    eos = [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")]
    files = {
        "tokenizer_config.json": {
            "tokenizer_class": "Qwen2Tokenizer",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "clean_up_tokenization_spaces": False,
        },
        "generation_config.json": {"eos_token_id": eos, "pad_token_id": eos[1]},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE.strip(), encoding="utf-8")


def _randomise(module: nn.Module, generator: torch.Generator) -> None:
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                # Tied embeddings as wide as the layers would make every answer repeat one token.
                parameter.copy_(noise * (1.0 if "pos_embed" in name else 0.15))
            else:
                parameter.copy_(noise * 0.1 + (1.0 if "norm" in name and "weight" in name else 0.0))
