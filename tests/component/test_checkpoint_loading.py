"""Checkpoint folders: whole or sharded, old layout or new; everything wrong is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from liveedge.core.errors import CheckpointInvalid, RequestInvalid
from liveedge.models.loader import load_model
from liveedge.models.qwen3_vl.config import PixelBudget, load_config, load_pixel_config
from liveedge.models.qwen3_vl.export import to_hf
from liveedge.models.qwen3_vl.prompt import MediaSpec, PromptBuilder
from liveedge.models.qwen3_vl.weights import Qwen3VL
from liveedge.models.registry import family_of
from tests.checkpoints import make_checkpoint
from tests.plain import prefill
from tests.reference import Reference, still

CPU = torch.device("cpu")
UP = "model.language_model.layers.0.mlp.up_proj.weight"
PATCH = "model.visual.patch_embed.proj.weight"


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), layers=1, tied=False)


@pytest.fixture
def folder(original, tmp_path) -> Path:
    """A copy that a test may spoil."""
    return shutil.copytree(original, tmp_path / "model")


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Qwen3VL:
    return load_model(folder, device=CPU, dtype=dtype)


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def shard(folder: Path, n_files: int) -> None:
    """Spread the tensors over files as large checkpoints do, neighbours into different ones."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for number in range(n_files):
        file_name = f"model-{number + 1:05d}-of-{n_files:05d}.safetensors"
        mine = names[number::n_files]
        save_file({name: tensors[name] for name in mine}, folder / file_name)
        weight_map |= dict.fromkeys(mine, file_name)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def logits(model: Qwen3VL, folder: Path) -> torch.Tensor:
    prompts = PromptBuilder(folder)
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}]
    media = still(64, 64)
    return prefill(model, prompts.build(messages, [media.spec]), [media.frames])[0]


def test_a_sharded_checkpoint_gives_the_same_logits(original, folder):
    shard(folder, 3)
    assert torch.equal(logits(load(folder), folder), logits(load(original), original))


def test_weights_survive_loading_and_exporting(original):
    stored = load_file(original / "model.safetensors")
    model = load(original)
    exported = to_hf(model.vision, model.text)
    assert exported.keys() == stored.keys()
    assert all(torch.equal(exported[name], stored[name]) for name in stored)


def test_a_checkpoint_saved_by_transformers_gives_the_same_logits(original, tmp_path):
    reference = Reference(original)
    reference.model.save_pretrained(tmp_path)
    reference.processor.save_pretrained(tmp_path)
    assert not (tmp_path / "preprocessor_config.json").exists()  # it has the joint file
    assert torch.equal(logits(load(tmp_path), tmp_path), logits(load(original), original))
    vision = load_config(original).vision
    assert load_pixel_config(tmp_path, vision) == load_pixel_config(original, vision)


def test_weights_take_the_type_they_are_loaded_in(folder):
    model = load(folder, torch.bfloat16)
    parameters = [*model.vision.parameters(), *model.text.parameters()]
    assert {parameter.dtype for parameter in parameters} == {torch.bfloat16}
    assert not any(parameter.requires_grad for parameter in parameters)
    assert not model.text.training
    wide, narrow = logits(load(folder), folder), logits(model, folder)
    assert narrow.dtype == torch.bfloat16
    assert (wide - narrow).abs().max() < 0.2 * wide.std()


def test_a_tied_checkpoint_may_repeat_its_head(tmp_path):
    make_checkpoint(tmp_path, layers=1, tied=True)
    before = logits(load(tmp_path), tmp_path)
    embedding = "model.language_model.embed_tokens.weight"
    edit_weights(tmp_path, lambda t: t.update({"lm_head.weight": t[embedding].clone()}))
    assert torch.equal(logits(load(tmp_path), tmp_path), before)


def test_the_configuration_layout_of_published_checkpoints_is_read(folder):
    before = load_config(folder)

    def publish(values: dict[str, Any]) -> None:
        text = values["text_config"]
        rope = text.pop("rope_parameters")
        text["rope_theta"] = rope.pop("rope_theta")
        text["rope_scaling"] = rope
        text["dtype"] = values.pop("dtype")
        values["torch_dtype"] = "bfloat16"
        values["vision_config"]["model_type"] = "qwen3_vl"
        values["vision_config"]["patch_size"] = [16, 16]

    edit(folder / "config.json", publish)
    assert load_config(folder) == before


def test_a_checkpoint_without_processor_files_gets_the_published_budgets(folder):
    (folder / "preprocessor_config.json").unlink()
    (folder / "video_preprocessor_config.json").unlink()
    pixels = load_pixel_config(folder, load_config(folder).vision)
    assert pixels.image == PixelBudget(65536, 16777216)
    assert pixels.video == PixelBudget(2048, 768 * 32 * 32)


def test_the_processor_files_of_published_checkpoints_bound_each_frame(folder):
    def publish(values: dict[str, Any]) -> None:
        del values["max_video_tokens"], values["cap_pixels_per_frame"]
        values["size"] = {"longest_edge": 25165824, "shortest_edge": 4096}

    edit(folder / "video_preprocessor_config.json", publish)
    pixels = load_pixel_config(folder, load_config(folder).vision)
    assert pixels.video == PixelBudget(2048, 768 * 32 * 32)


def test_a_request_can_only_lower_a_budget():
    budget = PixelBudget(4096, 65536)
    assert budget.capped(None) == budget
    assert budget.capped(10**9) == budget
    assert budget.capped(5000) == PixelBudget(4096, 5000)
    assert budget.capped(1000) == PixelBudget(1000, 1000)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(UP), f"lacks: {UP}"),
        (lambda t: t.update(extra=torch.zeros(1)), "has unknown tensors: extra"),
        (lambda t: t.update({UP: t[UP][1:].clone()}), rf"{UP} has shape \[127, 64\].* \[128, 64\]"),
        (lambda t: t.update({PATCH: t[PATCH].flatten(1)}), rf"{PATCH} has shape \[48, 1536\]"),
        (lambda t: t.clear(), "lacks: .* and [0-9]+ more"),
    ],
)
def test_every_wrong_tensor_is_named(folder, change, message):
    edit_weights(folder, change)
    with pytest.raises(CheckpointInvalid, match=message):
        load(folder)


def test_missing_and_damaged_weight_files_are_named(folder):
    shard(folder, 2)
    second = folder / "model-00002-of-00002.safetensors"
    second.write_bytes(second.read_bytes()[:1000])
    with pytest.raises(CheckpointInvalid, match=r"cannot read .*00002-of-00002"):
        load(folder)
    second.unlink()
    with pytest.raises(CheckpointInvalid, match=r"cannot read .*00002-of-00002"):
        load(folder)


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("text_config", "hidden_size", None, "text_config: hidden_size is missing"),
        ("text_config", "hidden_size", "64", "hidden_size is '64', needs an integer"),
        ("text_config", "num_hidden_layers", 0, "num_hidden_layers is 0, needs an integer of at"),
        ("text_config", "num_key_value_heads", 3, "num_key_value_heads is 3, needs a divisor of 4"),
        ("text_config", "hidden_act", "swish2", "hidden_act is 'swish2', needs one of gelu"),
        ("text_config", "rms_norm_eps", -1.0, "rms_norm_eps is -1.0, needs a positive number"),
        ("text_config", "attention_bias", "no", "attention_bias is 'no', needs true or false"),
        ("text_config", "rope_parameters", {"rope_type": "yarn"}, "rope_type is 'yarn'"),
        ("text_config", "rope_parameters", {"mrope_section": [8, 8, 8]}, "add up to head_dim / 2"),
        ("text_config", "rope_parameters", [1], "rope_parameters is .*, needs an object"),
        ("vision_config", "depth", True, "vision_config: depth is True"),
        ("vision_config", "hidden_size", 50, "hidden_size is 50, needs a multiple of 4"),
        ("vision_config", "num_position_embeddings", 35, "needs a square number"),
        ("vision_config", "deepstack_visual_indexes", [1, 0], "rising layer numbers below depth"),
        ("vision_config", "deepstack_visual_indexes", [2], "rising layer numbers below depth"),
        ("vision_config", "deepstack_visual_indexes", [0, 1], "more than the 1 text layers"),
        ("vision_config", "deepstack_visual_indexes", "0", "needs a list of integers"),
        ("vision_config", "in_channels", 4, r"in_channels is 4, needs 3"),
        ("vision_config", "temporal_patch_size", 3, "temporal_patch_size is 3, needs 2"),
        ("vision_config", "out_hidden_size", 32, "out_hidden_size is 32, needs .*64"),
    ],
)
def test_every_wrong_key_of_the_configuration_is_named(folder, section, key, value, message):
    edit(folder / "config.json", lambda values: values[section].update({key: value}))
    with pytest.raises(CheckpointInvalid, match=message):
        load_config(folder)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("patch_size", 14, "patch_size is 14, needs 16"),
        ("resample", 2, "resample is 2, needs 3"),
        ("do_normalize", False, "do_normalize is False, needs true"),
        ("image_mean", [0.5], "image_mean is .*, needs a list of three numbers"),
        ("image_std", [0.4, 0.4, 0.4], "image_std is .*, needs the images'"),
        ("size", {"longest_edge": 100}, "longest_edge is 100, needs at least"),
    ],
)
def test_every_wrong_key_of_the_processor_files_is_named(folder, key, value, message):
    edit(folder / "video_preprocessor_config.json", lambda values: values.update({key: value}))
    with pytest.raises(CheckpointInvalid, match=message):
        load_pixel_config(folder, load_config(folder).vision)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "cannot read .*config.json: No such file.*is this a model folder"),
        ("config.json", "{", "config.json is not JSON"),
        ("config.json", "[1]", "holds list, needs an object"),
        (
            "config.json",
            '{"model_type": "llava"}',
            "model_type is 'llava', supported are: qwen3_vl",
        ),
    ],
)
def test_a_folder_that_is_no_model_says_so(folder, name, content, message):
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(CheckpointInvalid, match=message):
        family_of(folder)


def test_quantised_weights_are_refused_with_the_way_out(folder):
    edit(folder / "config.json", lambda values: values.update(quantization_config={"bits": 4}))
    with pytest.raises(CheckpointInvalid, match="quantised weights are not supported; use"):
        load_config(folder)


def test_the_family_opens_prompts_and_says_that_it_takes_video(original):
    family = family_of(original)
    assert (family.name, family.supports_video) == ("qwen3_vl", True)
    assert family.open_prompts(original).max_model_len == 4096


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v["model"].update(type="Unigram"), "not a byte-level BPE tokenizer"),
        (lambda v: v.update(added_tokens=v["added_tokens"][:4]), "has no special token <|vision_e"),
        (lambda v: v["added_tokens"][0].update(content=3), "tokenizer.json cannot be loaded"),
    ],
)
def test_a_wrong_tokenizer_is_named(folder, change, message):
    edit(folder / "tokenizer.json", change)
    with pytest.raises(CheckpointInvalid, match=message.replace("|", r"\|")):
        PromptBuilder(folder)


def test_a_media_token_with_another_id_than_configured_is_named(folder):
    edit(folder / "config.json", lambda values: values.update(image_token_id=7))
    with pytest.raises(CheckpointInvalid, match=r"gives <.image_pad.> the id .*config.json says 7"):
        PromptBuilder(folder)


def test_the_end_of_an_answer_is_found_where_the_checkpoint_says_it(folder):
    end, text_end = (
        PromptBuilder(folder).vocabulary.special[t] for t in ("<|im_end|>", "<|endoftext|>")
    )
    (folder / "generation_config.json").write_text("{}")
    assert PromptBuilder(folder).vocabulary.eos_ids == {end}  # tokenizer_config.json
    edit(folder / "config.json", lambda v: v["text_config"].update(eos_token_id=text_end))
    assert PromptBuilder(folder).vocabulary.eos_ids == {text_end}
    edit(folder / "config.json", lambda v: v.update(eos_token_id=[end, text_end]))
    assert PromptBuilder(folder).vocabulary.eos_ids == {end, text_end}


def test_a_checkpoint_that_never_ends_an_answer_is_refused(folder):
    (folder / "generation_config.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(CheckpointInvalid, match="which token ends an answer"):
        PromptBuilder(folder)


@pytest.mark.parametrize("name", ["chat_template.json", "tokenizer_config.json"])
@pytest.mark.parametrize("listed", [False, True])
def test_a_chat_template_is_found_where_checkpoints_keep_it(folder, name, listed):
    messages = [{"role": "user", "content": "hi"}]
    before = PromptBuilder(folder).build(messages).ids.tolist()
    source = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").unlink()
    path = folder / name
    if not path.exists():
        path.write_text("{}")
    value = [{"name": "default", "template": source}] if listed else source
    edit(path, lambda values: values.update(chat_template=value))
    assert PromptBuilder(folder).build(messages).ids.tolist() == before


def test_a_folder_without_a_chat_template_says_so(folder):
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(CheckpointInvalid, match=r"no chat template: add chat_template\.jinja"):
        PromptBuilder(folder)


def test_a_broken_chat_template_says_so(folder):
    (folder / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(CheckpointInvalid, match="the chat template is wrong"):
        PromptBuilder(folder)


def test_a_template_reads_the_named_tokens_and_is_kept_in_its_sandbox(folder):
    (folder / "chat_template.jinja").write_text("{{ eos_token }}{{ pad_token }}")
    prompts = PromptBuilder(folder)
    special = prompts.vocabulary.special
    assert prompts.build([]).ids.tolist() == [special["<|im_end|>"], special["<|endoftext|>"]]
    (folder / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    with pytest.raises(RequestInvalid, match=r"refuses these messages: .*unsafe"):
        PromptBuilder(folder).build([])


def test_messages_that_the_template_refuses_are_an_error_of_the_request(original):
    messages = [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]
    with pytest.raises(RequestInvalid, match="a system message must be the first"):
        PromptBuilder(original).build(messages)


@pytest.mark.parametrize(
    ("parts", "kinds"), [(["image"], []), ([], ["image"]), (["image"], ["video"])]
)
def test_media_that_the_template_does_not_write_are_never_dropped(original, parts, kinds):
    messages = [{"role": "user", "content": [{"type": kind} for kind in parts]}]
    media = [MediaSpec(kind=kind, height=64, width=64) for kind in kinds]
    with pytest.raises(CheckpointInvalid, match="one media token per media part"):
        PromptBuilder(original).build(messages, media)
