"""A checkpoint of strangers: it computes what it is for, and takes nothing else."""

import ast
import json
import shutil
import struct
from pathlib import Path

import pytest

import liveedge
from liveedge.core.errors import CheckpointInvalid, RequestInvalid
from liveedge.models.headers import tensor_values, weight_files
from liveedge.models.qwen3_vl.config import MAX_LAYERS, load_config, read_json
from liveedge.models.qwen3_vl.template import ChatTemplate

SHIPPED = Path(liveedge.__file__).parent / "assets" / "workcell-tiny"
ASKED = [{"role": "user", "content": "what is there"}]
# Reading any of these runs what the file says.
RUNS_CODE = {"torch.load", "pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle"}


def template(tmp_path, source):
    (tmp_path / "chat_template.jinja").write_text(source, encoding="utf-8")
    return ChatTemplate(tmp_path, ["<|im_end|>"])


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__ }}",
        "{{ ''['__class__'] }}",
        "{{ ''|attr('__class__') }}",
        "{{ messages|map(attribute='__class__')|list }}",
        "{{ raise_exception.__globals__ }}",
        "{{ self.__init__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ lipsum.__globals__ }}",
        "{{ namespace.__init__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ (1).to_bytes(9, 'big') }}",
        "{{ ''.encode() }}",
    ],
)
def test_a_template_reads_no_attribute_of_python_and_changes_nothing(tmp_path, source):
    try:
        shown = template(tmp_path, source).render(ASKED, (), add_generation_prompt=True)
    except (RequestInvalid, CheckpointInvalid):
        shown = ""
    assert shown in ("", "[Undefined]")  # what is not there is empty, as everywhere in Jinja
    assert ASKED == [{"role": "user", "content": "what is there"}]


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10**9) %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ '' }}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}" + "x" * 10_000 + "{% endfor %}",
        "{{ 'a' * 10**10 }}",
        "{{ 10**10 * 'a' }}",
        "{{ ['a'] * 10**10 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% set ns = namespace(x=9) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}",
        "{% set n = namespace(x=1) %}{% for i in range(99) %}{% set n.x = {1: n.x, 2: n.x} %}{% endfor %}",
        "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% macro f(n) %}{% if n < 60 %}{{ f(n + 1) }}{{ f(n + 1) }}{% endif %}{% endmacro %}{{ f(0) }}",
        "{{ ('a' * 9999)|replace('a', 'b' * 99999) }}",
        "{{ ('a' * 9999).replace('a', 'b' * 99999) }}",
        "{{ range(99999)|join('b' * 99999) }}",
        "{{ ('b' * 99999).join(['a'] * 99999) }}",
        "{{ messages|tojson(indent=10**9) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ 'a'.center(10**9) }}",
        "{{ 'a'.zfill(10**9) }}",
        "{{ 'a'.ljust(10**9) }}",
        "{{ 'a'|center(10**9) }}",
        "{{ '%999999999d'|format(1) }}",
        "{{ [1]|batch(10**9, 'x')|list }}",
        "{{ 1.5|round(10**9, 'ceil') }}",
        "{{ lipsum(10**9) }}",
        "{% for i in messages recursive %}{{ loop(messages) }}{% endfor %}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "x" * (2 << 20),
    ],
)
def test_a_template_that_would_take_all_memory_or_time_is_stopped(tmp_path, source):
    with pytest.raises((RequestInvalid, CheckpointInvalid)):
        template(tmp_path, source).render(ASKED, (), add_generation_prompt=True)


def test_what_published_templates_do_still_works(tmp_path):
    source = """
    {%- set ns = namespace(found=false, text='') %}
    {%- for message in messages[::-1] %}
      {%- set index = (messages|length - 1) - loop.index0 %}
      {%- if message.role == 'user' and not ns.found %}{% set ns.found = true %}{% endif %}
      {%- set ns.text = ns.text ~ index ~ message.content.strip().split(' ')|last %}
      {%- for key, value in message|items if key is string %}{{ key }}={{ value|tojson }};{% endfor %}
      {%- if loop.index > 5 %}{% break %}{% endif %}
    {%- endfor %}
    {%- for tool in tools or [] %}{{ tool|tojson(indent=2) }}{{ '\\n' }}{% endfor %}
    {{- ns.text }}{{ ['a', 1]|map('string')|join(',') }}{{ '%d' if false else 2 * 3 + 1 }}
    {{- 'a,b'.replace(',', '-') }}{{ '-' * 3 }}
    """
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    shown = template(tmp_path, source).render(ASKED, (tool,), add_generation_prompt=True)
    assert 'content="what is there";' in shown
    assert shown.rstrip().endswith("0therea,17a-b---")
    assert '"name": "f"' in shown


def test_a_long_conversation_is_within_the_bounds(tmp_path):
    source = (SHIPPED / "chat_template.jinja").read_text(encoding="utf-8")
    long = [{"role": "user", "content": [{"type": "text", "text": "word " * 40_000}] * 20}]
    many = [{"role": "user", "content": "a"}] * 20_000
    for messages in (long, many):
        shown = template(tmp_path, source).render(messages, (), add_generation_prompt=True)
        assert len(shown) > 500_000


def test_nothing_that_reads_a_checkpoint_can_run_code():
    """Weights are safetensors, everything else JSON or text; no module knows a loader of objects."""
    for path in Path(liveedge.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {(node.module or "").partition(".")[0]}
            elif isinstance(node, ast.Attribute | ast.Name):
                names = {ast.unparse(node)}
            else:
                continue
            assert not names & RUNS_CODE, f"{path}: {names}"


@pytest.fixture
def folder(tmp_path):
    for path in SHIPPED.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, tmp_path)
    return tmp_path


def test_weights_are_files_of_the_folder_and_safetensors_alone(folder):
    for name in ("../model.safetensors", "/etc/passwd", "sub/x.safetensors", "weights.bin", ".."):
        index = json.dumps({"weight_map": {"a": name}})
        (folder / "model.safetensors.index.json").write_text(index)
        with pytest.raises(CheckpointInvalid, match="no safetensors file of the folder"):
            weight_files(folder)


def test_json_that_is_huge_or_deep_is_refused_before_it_is_a_problem(folder):
    path = folder / "config.json"
    path.write_text("[" * 200_000)
    with pytest.raises(CheckpointInvalid, match="is not JSON"):
        read_json(path)
    with path.open("wb") as file:
        file.truncate(1 << 30)  # no disk is written
    with pytest.raises(CheckpointInvalid, match="at most"):
        read_json(path)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("text_config", "num_hidden_layers", MAX_LAYERS + 1),
        ("vision_config", "depth", 10**12),
        ("text_config", "hidden_size", 1 << 40),
    ],
)
def test_numbers_that_no_model_has_are_refused_by_name(folder, section, key, value):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config[section][key] = value
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointInvalid, match=f"{key} is 'too large'"):
        load_config(folder)


def test_a_header_that_claims_more_than_the_format_allows_is_refused(folder):

    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    with pytest.raises(CheckpointInvalid, match="a header of"):
        tensor_values(folder)
