"""Train a tiny model by TRL's GRPO on the CPU, recorded.

pip install trl
python train.py DIRECTORY
msprobe rl check DIRECTORY/run
msprobe view DIRECTORY/run -o page.html
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "verl_cpu"))

from msprobe_trl import RecordedGRPOTrainer
from tiny import make_model, make_tokenizer

RECORD = """\
out: {out}
stages: [actor_compute_log_prob, actor_update]
level: L0
task: statistics
per_stage:
  actor_compute_log_prob: {{task: tensor}}
  actor_update: {{task: tensor}}
"""


def reward(completions, **_):
    """Give digits a point each: short answers differ, so that advantages are not zero."""
    return [float(sum(letter.isdigit() for letter in text)) - 0.01 * len(text) for text in completions]


def main():
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, help="where everything is made")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--beta", type=float, default=0.04)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--plain", action="store_true", help="train without recording")
    given = parser.parse_args()
    place = given.directory.absolute()
    model = place / "model"
    model.mkdir(parents=True, exist_ok=True)
    make_tokenizer(model)
    make_model(model)
    (place / "record.yaml").write_text(RECORD.format(out=place / "run"))
    args = GRPOConfig(
        output_dir=str(place / "checkpoints"), per_device_train_batch_size=4, num_generations=2, max_steps=given.steps,
        max_completion_length=8, beta=given.beta, learning_rate=1e-3, report_to=[], use_cpu=True, save_strategy="no",
        logging_steps=1, seed=3, disable_tqdm=True, bf16=False, gradient_checkpointing=False,
    )  # fmt: skip
    trainer = RecordedGRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(
            model, attention_dropout=given.dropout, attn_implementation="eager"
        ), reward_funcs=reward, args=args,
        train_dataset=Dataset.from_list([{"prompt": f"{number}+{number}="} for number in range(8)]),
        processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
        record=None if given.plain else place / "record.yaml",
    )  # fmt: skip
    trainer.train()
    trainer.save_model(str(place / "trained"))


if __name__ == "__main__":
    main()
