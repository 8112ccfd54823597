"""The tokenizer of the shipped model: a small byte-level BPE with Qwen's special tokens.

Trained on the questions and answers of the simulator plus common English, so that a question of
ours is a handful of tokens while any UTF-8 text is still accepted, byte by byte.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from liveedge.sim import questions, scene

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
VOCABULARY = 768
# How the Qwen family cuts text into words before merging: each digit is a word of its own.
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = """\
{%- macro show(content) -%}
  {%- if content is string -%}{{ content }}
  {%- elif content -%}
    {%- for part in content -%}
      {%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>
      {%- elif part.type == 'video' -%}<|vision_start|><|video_pad|><|vision_end|>
      {%- else -%}{{ part.text }}
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- macro offer(tools) -%}
  {{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n' -}}
  {{- 'You are provided with function signatures within <tools></tools> XML tags:\\n<tools>' -}}
  {%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
  {{- '\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments' -}}
  {{- ' within <tool_call></tool_call> XML tags:\\n<tool_call>\\n' -}}
  {{- '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>' -}}
{%- endmacro -%}
{%- macro call(function) -%}
  {{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' -}}
  {%- if function.arguments is string -%}{{- function.arguments -}}
  {%- else -%}{{- function.arguments | tojson -}}
  {%- endif -%}
  {{- '}\\n</tool_call>' -}}
{%- endmacro -%}
{%- if tools -%}
  {{- '<|im_start|>system\\n' -}}
  {%- if messages[0].role == 'system' -%}{{- show(messages[0].content) + '\\n\\n' -}}{%- endif -%}
  {{- offer(tools) + '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if message.role == 'tool' -%}
    {%- if loop.first or loop.previtem.role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
    {{- '\\n<tool_response>\\n' + show(message.content) + '\\n</tool_response>' -}}
    {%- if loop.last or loop.nextitem.role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
  {%- elif not (tools and loop.first and message.role == 'system') -%}
    {{- '<|im_start|>' + message.role + '\\n' -}}
    {{- show(message.content) -}}
    {%- for tool_call in message.tool_calls or [] -%}
      {%- if message.content or not loop.first -%}{{- '\\n' -}}{%- endif -%}
      {{- call(tool_call.function or tool_call) -}}
    {%- endfor -%}
    {{- '<|im_end|>\\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def corpus() -> list[str]:
    """What the tokenizer learns its merges from."""
    rng = np.random.default_rng(0)
    lines: list[str] = []
    for kind in questions.KINDS.values():
        lines += list(kind.phrasings) * 20 + list(kind.answers) * 40
    for seed in range(400):
        cell = scene.Workcell(seed)
        states = [cell.state(float(t)) for t in rng.uniform(0, 60, 6)]
        answers = (questions.expected("state", [state]) for state in states)
        lines += [answer for answer in answers if answer is not None]
    lines += [f"{n:02d}" for n in range(100)]
    lines += [f"<{tenth / 10:.1f} seconds>" for tenth in range(300)]
    lines += ["system", "user", "assistant", "tool", "You are a helpful assistant."] * 20
    lines += ["Answer with one word. Answer briefly. Be short. Please look closely."] * 20
    return lines


def build() -> Tokenizer:
    """Train it: the same bytes each time."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def write(folder: Path) -> Tokenizer:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "Qwen2TokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "bos_token": None,
        "add_prefix_space": False,
        "additional_special_tokens": list(SPECIAL[1:8]),
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return tokenizer
