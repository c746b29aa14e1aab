"""Vision transformers (Dosovitskiy et al. 2021) with timm's names and shapes, so that its weights can be loaded."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pocketbayes.base.errors import UserError
from pocketbayes.models.layers import named


class Attention(nn.Module):
    """Multi-head self-attention over tokens."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, dim) to the same shape."""
        batch, tokens, dim = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, dim // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        out = F.scaled_dot_product_attention(query, key, value)
        mixed: Tensor = self.proj(out.transpose(1, 2).reshape(batch, tokens, dim))
        return mixed


class TransformerBlock(nn.Module):
    """`x = x + attention(norm(x))`, then `x = x + mlp(norm(x))`."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = named(fc1=nn.Linear(dim, 4 * dim), act=nn.GELU(), fc2=nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, dim) to the same shape."""
        x = x + self.attn(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x


class VisionTransformer(nn.Module):
    """Vision transformer: patches and a class token through `depth` blocks; the class token is classified.

    Args:
        dim: Width of a token.
        heads: Attention heads; they divide `dim`.
        depth: Number of blocks.
        patch_size: Side of a patch, which divides `image_size`.
        image_size: Side of the square images.
        in_channels: Channels of the images.
        classes: Number of logits.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        depth: int = 12,
        patch_size: int = 16,
        image_size: int = 224,
        in_channels: int = 3,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        if image_size % patch_size:
            raise UserError(f"vit: patch_size {patch_size} does not divide image_size {image_size}")
        if dim % heads:
            raise UserError(f"vit: {heads} heads do not divide dim {dim}")
        self.image_size = image_size
        self.patch_embed = named(
            proj=nn.Conv2d(in_channels, dim, patch_size, stride=patch_size), flatten=nn.Flatten(start_dim=2)
        )
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, (image_size // patch_size) ** 2 + 1, dim))
        self.blocks = nn.Sequential(*(TransformerBlock(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, classes)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2 or name in ("cls_token", "pos_embed"):
                nn.init.trunc_normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """Map images to logits."""
        if x.shape[-2:] != (self.image_size, self.image_size):
            size = "x".join(map(str, x.shape[-2:]))
            raise UserError(f"vit: images are {size}, but the model takes {self.image_size}: build it with image_size=")
        patches = self.patch_embed(x).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(len(x), -1, -1), patches], dim=1) + self.pos_embed
        logits: Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return logits
