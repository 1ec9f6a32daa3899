"""Training a block-size policy on labels."""

import hashlib
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from paceline.checkpoints.policy import load_policy
from paceline.cli import main
from paceline.errors import CheckpointError, InputError
from paceline.labels import Label, read_labels, write_label
from paceline.train.policy import train_policy
from paceline.train.policy_config import PolicyTrainConfig
from paceline.train.policy_objective import acceptance_lengths, counting_noise, log_accepted, rates_at_median_cost

SIZES = torch.tensor([4, 8, 16])
MAKING = {
    "target_digest": "aaaa",
    "drafter_digest": "bbbb",
    "chat_template_sha256": "cccc",
    "max_tokens": 64,
    "temperature": 0.0,
    "tree": "chain",
    "tree_budget": None,
    "lookup": False,
    "dtype": None,
}


def label(index, best, seed=0):
    """A prompt whose logits say which size is best for it, with noise around."""
    generator = torch.Generator().manual_seed(1000 * seed + index)
    logits = torch.randn(20, generator=generator)
    logits[best] += 6.0
    rounds = torch.full((3,), 30)
    rounds[best] = 20
    rounds_seconds = torch.tensor([0.01, 0.012, 0.03], dtype=torch.float64)
    seconds = rounds * rounds_seconds
    zeros = torch.zeros(3, dtype=torch.float64)
    accepted = 60 - rounds
    return Label(
        prompt_id=str(index),
        set_name="made",
        prompt_sha256=hashlib.sha256(f"{seed} {index}".encode()).hexdigest(),
        made_with={"dtype": "torch.float32"},
        logits=logits,
        features=logits[:5].clone(),
        hidden=logits[:7].clone(),
        block_sizes=SIZES,
        rounds=rounds,
        accepted=accepted,
        tokens=accepted + rounds + 1,
        prefill_s=zeros + 0.1,
        decode_s=seconds,
        draft_s=zeros.clone(),
        verify_s=zeros.clone(),
    )


def put(folder, made):
    """Write a label under its prompt's name."""
    write_label(folder / f"{made.prompt_sha256[:24]}.safetensors", made)


def write_labels(folder, count=120, **changes):
    folder.mkdir()
    for index in range(count):
        put(folder, label(index, index % 3))
    (folder / "settings.json").write_text(json.dumps({**MAKING, **changes}))
    return folder


def quick(tmp_path, **changes):
    given = {"width": 32, "learning_rate": 3e-3, "epochs": 40, "dropout": 0.0, "threads": 1}
    return PolicyTrainConfig((tmp_path / "labels",), tmp_path / "policy", **{**given, **changes})


@pytest.mark.parametrize("inputs", ["logits", "softmax", "features", "last_hidden"])
def test_what_the_logits_say_is_learned_and_holds_on_other_prompts(tmp_path, inputs):
    write_labels(tmp_path / "labels")
    epochs = []
    train_policy(quick(tmp_path, inputs=inputs), epochs.append)
    assert epochs[-1].validation_accuracy > 0.9
    head, about = load_policy(tmp_path / "policy")
    fresh = [(index % 3, label(index, index % 3, seed=7)) for index in range(60)]
    right = sum(head.choose(x.logits, x.features, x.hidden) == SIZES[best] for best, x in fresh)
    assert right > 50
    assert about["target_digest"] == "aaaa" and about["recipe"]["inputs"] == inputs
    assert about["prompts"]["training"] + about["prompts"]["validation"] == 120


def test_the_epoch_of_the_lowest_validation_loss_is_kept_and_training_stops_when_none_comes(tmp_path):
    write_labels(tmp_path / "labels", 30)
    epochs = []
    train_policy(quick(tmp_path, learning_rate=0.1, patience=3, epochs=100), epochs.append)
    best = min(epochs, key=lambda e: e.validation_loss)
    _, about = load_policy(tmp_path / "policy")
    assert about["best_epoch"]["number"] == best.number
    assert len(epochs) == min(100, best.number + 3)


def test_labels_by_tau_and_by_rate_come_from_the_same_files(tmp_path):
    labels = read_labels(write_labels(tmp_path / "labels", 9))
    tau, rate = acceptance_lengths(labels), rates_at_median_cost(labels)
    assert torch.equal(tau, 60.0 / torch.stack([x.rounds for x in labels]).double())
    assert torch.allclose(rate, tau / torch.tensor([0.01, 0.012, 0.03], dtype=torch.float64))
    assert (tau.argmax(-1) == torch.tensor([int(x.prompt_id) % 3 for x in labels])).all()
    assert 2 not in rate.argmax(-1)  # the size that is longest and never worth its time


def test_labels_of_different_making_are_refused(tmp_path):
    write_labels(tmp_path / "labels")
    write_labels(tmp_path / "others", temperature=1.0)
    config = quick(tmp_path)
    with pytest.raises(InputError, match=r"labelled with temperature = 1\.0"):
        train_policy(PolicyTrainConfig((*config.labels, tmp_path / "others"), config.out))
    (tmp_path / "labels" / "settings.json").write_text("{}")
    with pytest.raises(CheckpointError, match="lacks chat_template_sha256"):
        train_policy(config)


def test_folders_of_labels_that_do_not_go_together_are_refused(tmp_path):
    first = write_labels(tmp_path / "labels", 4)
    for name, changes, sentence in (
        ("same", {}, "labelled twice"),
        ("dtype", {"made_with": {"dtype": "torch.bfloat16"}}, "the making"),
        ("sizes", {"block_sizes": SIZES + 1}, "block sizes"),
        ("width", {"features": torch.zeros(0)}, "inputs of sizes"),
    ):
        second = write_labels(tmp_path / name, 0)
        number = 0 if name == "same" else 100
        put(second, replace(label(number, 0), **changes))
        with pytest.raises(CheckpointError, match=sentence):
            train_policy(PolicyTrainConfig((first, second), tmp_path / "policy"))


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_sha256": "zz" * 32},
        {"logits": torch.full((20,), torch.nan)},
        {"logits": torch.zeros(20, dtype=torch.float64)},
        {"accepted": torch.tensor([-1, 0, 0])},
        {"block_sizes": torch.tensor([4, 4, 8])},
        {"decode_s": torch.full((3,), torch.inf, dtype=torch.float64)},
        {"prefill_s": torch.zeros(3, dtype=torch.float64)},
    ],
    ids=["digest", "NaN", "type", "accepted", "sizes", "times", "no time"],
)
def test_labels_of_what_cannot_be_are_refused_by_name(tmp_path, changes):
    folder = write_labels(tmp_path / "labels", 2)
    put(folder, replace(label(7, 0), **changes))
    with pytest.raises(CheckpointError, match="delete it and label again"):
        read_labels(folder)


def test_a_copy_of_a_label_under_another_name_is_refused(tmp_path):
    folder = write_labels(tmp_path / "labels", 2)
    write_label(folder / "copy.safetensors", label(0, 0))
    with pytest.raises(CheckpointError, match="the label of another prompt"):
        read_labels(folder)


def test_a_folder_of_weights_is_told_apart_from_labels(tmp_path):
    save_file({"weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="give a folder that `paceline label` made"):
        read_labels(tmp_path)


def test_a_place_that_cannot_hold_a_policy_is_refused_before_the_work(tmp_path):
    write_labels(tmp_path / "labels", 9)
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for place in ("file", "file/policy", "link"):
        with pytest.raises(InputError, match=r"no policy|may write to|is a link"):
            train_policy(replace(quick(tmp_path), out=tmp_path / place))


def test_prompts_that_all_like_the_same_size_are_said_to_teach_nothing(tmp_path):
    folder = write_labels(tmp_path / "labels", 0)
    for index in range(20):
        put(folder, label(index, 1))
    with pytest.warns(UserWarning, match="the same best block size"):
        train_policy(quick(tmp_path, label_by="acceptance_length", epochs=1, validation=0.3))


def prompt_of_ease(index, seed=0):
    """A prompt whose first logit is the logarithm of what a round keeps, with the second size keeping twice as much."""
    made = label(index, 0, seed)
    logits = made.logits.clone()
    logits[0] = math.sin(index)
    kept = logits[0].exp().item()
    rounds = torch.full((3,), 200)
    accepted = torch.tensor([round(200 * kept), round(400 * kept), round(200 * kept)])
    return replace(made, logits=logits, rounds=rounds, accepted=accepted, tokens=accepted + rounds + 1)


def test_what_rounds_keep_is_predicted_in_logarithms_with_its_average_and_its_error(tmp_path):
    folder = write_labels(tmp_path / "labels", 0)
    for index in range(200):
        put(folder, prompt_of_ease(index))
    train_policy(quick(tmp_path, predict="accepted", learning_rate=1e-2, epochs=100))
    head, about = load_policy(tmp_path / "policy")
    assert head.config.predicts == "accepted"
    errors = []
    for index in range(300, 360):
        fresh = prompt_of_ease(index, seed=7)
        truth = [math.sin(index), math.sin(index) + math.log(2), math.sin(index)]
        errors.append(np.abs(np.array(head.predict(fresh.logits, fresh.features)) - truth).mean())
    assert np.mean(errors) < 0.35  # knowing nothing of a prompt gives 0.64
    assert about["typical"][1] - about["typical"][0] == pytest.approx(math.log(2), abs=0.1)
    assert all(0.1 <= spread < 0.6 for spread in about["spread"])


def test_counting_noise_is_what_counting_few_rounds_adds():
    generator = torch.Generator().manual_seed(0)
    drawn = [label(i, 0) for i in range(2000)]
    accepted = torch.poisson(torch.full((2000, 3), 30.0), generator=generator).long()
    drawn = [replace(x, rounds=torch.full((3,), 10**6), accepted=a) for x, a in zip(drawn, accepted, strict=True)]
    assert log_accepted(drawn).var(0).numpy() == pytest.approx(counting_noise(drawn).numpy(), rel=0.15)


@pytest.mark.parametrize("what", ["file", "folder of something", "another checkpoint"])
def test_what_is_no_policy_is_not_replaced_and_that_is_said_before_the_training(tmp_path, what):
    write_labels(tmp_path / "labels", 30)
    out = tmp_path / "policy"
    if what == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / "config.json").write_text("{}" if "checkpoint" in what else "mine")
    with pytest.raises(CheckpointError, match=r"is no policy|not readable|JSON"):
        train_policy(quick(tmp_path), lambda epoch: pytest.fail("it was trained"))
    assert out.exists()


def test_answers_of_one_token_teach_nothing(tmp_path):
    folder = write_labels(tmp_path / "labels", 30)
    zero = torch.zeros(3, dtype=torch.int64)
    for index in range(30, 60):
        empty = replace(label(index, 0), rounds=zero, accepted=zero.clone(), tokens=zero + 1)
        put(folder, empty)
    train_policy(quick(tmp_path, label_by="tokens_per_s", epochs=1))
    _, about = load_policy(tmp_path / "policy")
    assert about["prompts"]["training"] + about["prompts"]["validation"] == 30


def test_the_command_says_where_the_policy_is_and_what_it_was_trained_for(tmp_path, capsys):
    write_labels(tmp_path / "labels", 30)
    argv = ["--labels", str(tmp_path / "labels"), "--out", str(tmp_path / "policy"), "--width", "8", "--epochs", "2"]
    assert main(["train", "policy", *argv]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == str(tmp_path / "policy") and "epoch 2" in err
    assert main(["policy", "show", str(tmp_path / "policy")]) == 0
    assert json.loads(capsys.readouterr().out)["target_digest"] == "aaaa"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"labels": ()}, "labels names no folder"),
        ({"epochs": 0}, "epochs is 0"),
        ({"validation": 0.0}, "validation is 0.0"),
        ({"learning_rate": 2.0}, "learning_rate is 2.0"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"predict": "accepted", "label_by": "tokens_per_s"}, "only a best size is labelled by it"),
    ],
)
def test_settings_outside_their_range_are_refused(changes, sentence, tmp_path):
    with pytest.raises(InputError, match=sentence):
        PolicyTrainConfig(**{"labels": (tmp_path,), "out": tmp_path, **changes})


def test_a_folder_without_labels_is_refused_in_one_sentence(tmp_path, capsys):
    assert main(["train", "policy", "--labels", "nowhere", "--out", str(tmp_path / "policy")]) == 2
    err = capsys.readouterr().err
    assert "holds no labels" in err and err.count("\n") == 1
