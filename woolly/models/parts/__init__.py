"""Building blocks shared by several architectures."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import lazy_getattr
from woolly.models.parts.feed_forward import feed_forward, plain_feed_forward
from woolly.models.parts.moe import experts, experts_or_feed_forward
from woolly.models.parts.mtp import next_token
from woolly.models.parts.per_layer_embeddings import gated_input, layer_inputs

if TYPE_CHECKING:
    from woolly.models.parts.attention import (
        apply_rope,
        attend,
        gated_attention,
        projections,
        self_attention,
        shared_attention,
    )
    from woolly.models.parts.diffusion import read_diffusion, read_out_masked
    from woolly.models.parts.embedding import typed
    from woolly.models.parts.encoder import post_norm_layers
    from woolly.models.parts.head import embeddings, logits, read_out, unembedded
    from woolly.models.parts.hyper_connections import Streams, copies, hyper_connected, mean_stream, read_streams
    from woolly.models.parts.indexer import Index, indexed, indexed_blocks, read_index
    from woolly.models.parts.mla import Latent, latent_attention, read_latent
    from woolly.models.parts.recurrence import gated_delta_net, kimi_delta_net, mamba, mamba2, short_conv

__all__ = [
    "Index",
    "Latent",
    "Streams",
    "apply_rope",
    "attend",
    "copies",
    "embeddings",
    "experts",
    "experts_or_feed_forward",
    "feed_forward",
    "gated_attention",
    "gated_delta_net",
    "gated_input",
    "hyper_connected",
    "indexed",
    "indexed_blocks",
    "kimi_delta_net",
    "latent_attention",
    "layer_inputs",
    "logits",
    "mamba",
    "mamba2",
    "mean_stream",
    "next_token",
    "plain_feed_forward",
    "post_norm_layers",
    "projections",
    "read_diffusion",
    "read_index",
    "read_latent",
    "read_out",
    "read_out_masked",
    "read_streams",
    "self_attention",
    "shared_attention",
    "short_conv",
    "typed",
    "unembedded",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "attention": "apply_rope attend gated_attention projections self_attention shared_attention",
        "diffusion": "read_diffusion read_out_masked",
        "embedding": "typed",
        "encoder": "post_norm_layers",
        "head": "logits read_out unembedded embeddings",
        "hyper_connections": "Streams copies hyper_connected mean_stream read_streams",
        "indexer": "Index indexed indexed_blocks read_index",
        "mla": "Latent latent_attention read_latent",
        "recurrence": "gated_delta_net kimi_delta_net mamba mamba2 short_conv",
    },
)
