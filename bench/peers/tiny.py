"""One training step of FSDP2 on gofsdp's built-in model `tiny`: what startup.py and ray_startup.py start."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import Qwen2Config, Qwen2ForCausalLM

# model/builtin.go
TINY = dict(
    vocab_size=4096, hidden_size=192, num_hidden_layers=6, num_attention_heads=3, num_key_value_heads=1,
    intermediate_size=512, max_position_embeddings=2048, tie_word_embeddings=True, initializer_range=0.05,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, rms_norm_eps=1e-6,
)  # fmt: skip
SEQUENCES, LENGTH = 2, 128  # of a rank


def first_step():
    """Trains one step in a group that has been joined. Rank 0 says when all ranks have done it."""
    on = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    with torch.device(on):
        model = Qwen2ForCausalLM(Qwen2Config(**TINY))
    mesh = init_device_mesh(on, (dist.get_world_size(),))
    for block in model.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

    torch.manual_seed(dist.get_rank())
    tokens = torch.randint(TINY["vocab_size"], (SEQUENCES, LENGTH + 1), device=on)
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    loss = loss.detach()
    dist.all_reduce(loss)  # also says that all have come so far
    if dist.get_rank() == 0:
        print(f"first step done: loss {loss.item() / dist.get_world_size():.4f}", flush=True)
