"""A script as people have it: Hugging Face's Trainer, its arguments from the command line, no allaboard."""

import os
import signal
import sys
from pathlib import Path

import torch
from transformers import (
    HfArgumentParser,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


class Killed(TrainerCallback):
    """A power cut, once: in the middle of a save, when the weights are written and the state is not."""

    def on_step_end(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        if state.global_step == 6 and not Path("killed").exists():
            torch.save = self.kill

    def kill(self, *_):  # type: ignore[no-untyped-def]
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)


arguments = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(sys.argv[1:])[0]
set_seed(arguments.seed)
sizes = {"hidden_size": 8, "intermediate_size": 8, "vocab_size": 16}
heads = {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
model = LlamaForCausalLM(LlamaConfig(**sizes, **heads))
rows = [
    {"input_ids": torch.tensor([n % 16, 2, 3]), "labels": torch.tensor([n % 16, 2, 3])} for n in range(32)
]
trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:4], callbacks=[Killed()])
trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
