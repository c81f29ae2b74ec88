"""Tensors in messages: no copies, aliases and ties preserved."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from rlinf_async._core import codec
from rlinf_async._transports import tensors as tensors_in_pickles
from rlinf_async.errors import SerializationError
from tests._support.fake_hosts import CHECKOUT

codec.extend("torch", "rlinf_async._transports.tensors")

LARGE = 64 * 1024


def travel(value: Any) -> Any:
    return codec.decode(codec.encode(value).to_bytes())


def test_a_few_tensors_in_builtin_containers_need_no_pickler_that_looks_at_every_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codec, "_Pickler", None)
    came = travel({"step": 3, "batch": [torch.ones(2), (torch.zeros(3), "x")]})
    assert torch.equal(came["batch"][0], torch.ones(2))
    assert torch.equal(came["batch"][1][0], torch.zeros(3))


def same_bits(one: torch.Tensor, two: torch.Tensor) -> bool:
    return one.dtype == two.dtype and one.shape == two.shape and bits(one) == bits(two)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.complex128,
    torch.bool,
    torch.uint8,
    torch.uint16,
    torch.int64,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_pickle_of_a_lone_tensor_is_made_once_for_all_of_its_shape(dtype: torch.dtype) -> None:
    def tensors() -> list[torch.Tensor]:
        flat = (torch.rand(4000) * 10).to(dtype)
        strided = flat[:2000].as_strided((1, 2000), (7, 1))
        return [
            flat,
            flat[:2000].view(1, 2000),
            flat.view(40, 100),
            flat.view(100, 40),
            flat.view(100, 40).t(),
            flat[100:3100],
            strided,
        ]

    travel(torch.ones(1))  # from now on it is known who provides for tensors
    first, second = tensors(), tensors()
    for one, other in zip(first, second, strict=True):
        heads = [codec.encode(tensor).head for tensor in (one, other)]
        assert heads[0] == heads[1]
        again = travel(other)
        assert same_bits(again, other)
        assert again.stride() == other.stride()


def test_a_tensor_that_is_more_than_its_memory_is_never_taken_for_one_of_its_shape() -> None:
    plain = torch.rand(1000)
    assert type(travel(plain)) is torch.Tensor
    assert travel(plain.clone().requires_grad_()).requires_grad
    assert type(travel(nn.Parameter(plain.clone()))) is nn.Parameter
    named = plain.clone()
    named.label = "weights"  # type: ignore[attr-defined]
    assert travel(named).label == "weights"
    assert torch.equal(travel(torch.complex(plain, plain).conj()), torch.complex(plain, -plain))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (5, 7), (3, 1000)], ids=str)
def test_every_kind_and_shape_comes_back_with_the_same_bits_and_writable(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensor = (torch.rand(shape) * 10).to(dtype)
    again = travel(tensor)
    assert type(again) is torch.Tensor
    assert same_bits(again, tensor)
    again.zero_()
    assert not again.to(torch.complex128).any()


tensors = st.builds(
    lambda shape, order, start: (
        torch.arange(4**3, dtype=torch.int32).reshape(4, 4, 4).permute(order)[start:, : shape[0], : shape[1]]
    ),
    st.tuples(st.integers(0, 4), st.integers(1, 4)),
    st.permutations(range(3)),
    st.integers(0, 3),
)
values = st.recursive(
    tensors | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return ("tensor", value.dtype, value.tolist(), tuple(value.shape))
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


@settings(max_examples=100, deadline=None)
@given(values)
def test_nested_values_with_views_of_any_strides_come_back_equal(value: Any) -> None:
    assert plain(travel(value)) == plain(value)


# -- without copies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(256, 256),
        torch.zeros(256, 256).t(),
        torch.zeros(2, 3, 100, 100).contiguous(memory_format=torch.channels_last),
        torch.zeros(1000, 256)[10:300],
        nn.Parameter(torch.zeros(256, 256)),
    ],
    ids=["contiguous", "transposed", "channels last", "rows", "parameter"],
)
def test_the_buffer_is_the_tensors_own_memory(tensor: torch.Tensor) -> None:
    encoded = codec.encode({"tensor": tensor})
    (buffer,) = encoded.buffers
    with torch.no_grad():
        tensor.fill_(1)
    assert buffer.nbytes == tensor.nbytes
    assert encoded.nbytes < tensor.nbytes + 2000
    assert bytes(buffer[:4]) == b"\x00\x00\x80\x3f"
    assert travel(tensor).stride() == tensor.stride()


def test_a_tensor_with_gaps_travels_without_what_lies_between() -> None:
    tensor = torch.arange(100_000.0).reshape(100, 1000)[:, ::10]
    encoded = codec.encode(tensor)
    assert encoded.nbytes < tensor.nbytes + 2000
    assert codec.decode(encoded.to_bytes()).equal(tensor)
    assert travel(torch.ones(1).expand(50_000)).is_contiguous()


def test_what_arrives_is_a_view_of_the_body() -> None:
    body = memoryview(bytearray(codec.encode(torch.zeros(LARGE)).to_bytes()))
    codec.decode(body).fill_(1)
    assert bytes(body[-4:]) == b"\x00\x00\x80\x3f"


# -- sharing ----------------------------------------------------------------------------------------------------------


def test_tensors_over_one_storage_share_it_on_the_other_side() -> None:
    tensor = torch.zeros(8, 5000)
    flat, turned, number = tensor.view(-1), tensor.t(), tensor.view(torch.int32)
    encoded = codec.encode([tensor, flat, turned, number, tensor])
    assert len(encoded.buffers) == 1
    again = codec.decode(encoded.to_bytes())
    again[0].fill_(1)
    assert again[4] is again[0]
    assert all(other.to(torch.float32).all() for other in again)
    assert again[3][0, 0] == 0x3F800000


def test_small_tensors_share_their_storage_too() -> None:
    tensor = torch.zeros(3)
    one, two = travel((tensor, tensor.view(3, 1)))
    one.fill_(1)
    assert two.all()


def test_parts_of_a_storage_travel_alone() -> None:
    whole = torch.zeros(2, LARGE)
    encoded = codec.encode([whole[0], whole[1]])
    assert encoded.nbytes < whole.nbytes + 2000
    one, two = codec.decode(encoded.to_bytes())
    one.fill_(1)
    assert not two.any()


def test_memory_that_was_freed_while_pickling_is_not_taken_for_shared() -> None:
    class Scaled:
        """Its state is a new tensor, which nobody else holds."""

        def __init__(self, factor: float) -> None:
            self.factor = factor

        def __getstate__(self) -> dict[str, Any]:
            return {"factor": torch.full((LARGE,), self.factor)[::2]}

    for again, factor in zip(travel([Scaled(factor) for factor in range(20)]), range(20), strict=True):
        assert again.factor.eq(factor).all()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.norm = nn.BatchNorm1d(32)
        self.head = nn.Linear(32, 100, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.norm(self.embedding(tokens)))
        return result


def test_a_module_with_tied_weights_comes_back_tied_and_computes_the_same() -> None:
    module = Tied().eval()
    again = travel(module)
    tokens = torch.arange(10)
    assert torch.equal(again(tokens), module(tokens))
    assert again.head.weight is again.embedding.weight
    assert isinstance(again.head.weight, nn.Parameter)
    assert again.head.weight.requires_grad
    assert len(codec.encode(module).buffers) == 1
    again(tokens).sum().backward()
    assert again.head.weight.grad is not None


def test_a_state_dict_with_tied_weights_comes_back_tied() -> None:
    state = travel(Tied().state_dict())
    state["head.weight"].fill_(7)
    assert state["embedding.weight"].eq(7).all()
    assert list(state) == list(Tied().state_dict())


def test_an_optimizers_state_comes_back() -> None:
    module = Tied()
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.arange(10)).sum().backward()
    optimizer.step()
    assert plain(travel(optimizer.state_dict())) == plain(copy.deepcopy(optimizer.state_dict()))


# -- what torch does itself -------------------------------------------------------------------------------------------


class Subclass(torch.Tensor):
    pass


def with_attribute() -> torch.Tensor:
    tensor = torch.ones(3)
    tensor.label = "x"  # type: ignore[attr-defined]
    return tensor


SPECIAL = {
    "requires grad": lambda: torch.ones(3, requires_grad=True),
    "has a history": lambda: torch.ones(3, requires_grad=True) * 2,
    "conjugate": lambda: torch.tensor([1 + 2j]).conj(),
    "negative": lambda: torch.tensor([1 + 2j]).conj().imag,
    "sparse": lambda: torch.eye(3).to_sparse(),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
    "meta": lambda: torch.empty(3, device="meta"),
    "subclass": lambda: torch.ones(3).as_subclass(Subclass),  # type: ignore[arg-type]
    "attribute": with_attribute,
    "frozen parameter": lambda: nn.Parameter(torch.ones(3), requires_grad=False),
}


def numbers(tensor: torch.Tensor) -> Any:
    return (tensor.dequantize() if tensor.is_quantized else tensor.detach().to_dense()).tolist()


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("make", SPECIAL.values(), ids=SPECIAL.keys())
def test_special_tensors_come_back_as_torch_itself_would_have_it(make: Any) -> None:
    tensor = make()
    again = travel([tensor])[0]
    assert type(again) is type(tensor)
    assert (again.dtype, again.shape, again.layout, again.device) == (
        tensor.dtype,
        tensor.shape,
        tensor.layout,
        tensor.device,
    )
    assert again.requires_grad == tensor.requires_grad
    assert again.__dict__ == tensor.__dict__
    if not tensor.is_meta:
        assert numbers(again) == numbers(tensor)


def test_other_things_of_torch_travel_as_usual() -> None:
    things = [torch.float32, torch.Size([2, 3]), torch.device("cpu"), torch.relu, nn.ReLU, torch.strided]
    assert travel(things) == things


# -- devices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("current", "calls"), [(0, ["record_stream"]), (1, ["record_stream", "cuda"])])
def test_what_a_links_stream_has_brought_stays_until_the_users_has_read_it(
    current: int, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    class Brought(torch.Tensor):
        is_cuda = True
        device = torch.device("cuda", 0)

        def record_stream(self, stream: Any) -> None:
            assert stream == "current stream of cuda:0"
            done.append("record_stream")

        def cuda(self) -> Any:
            done.append("cuda")
            return self

    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: f"current stream of {device}")
    tensors_in_pickles._rebuild_region(torch.zeros(3).as_subclass(Brought), True)
    assert done == calls


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.device_count(), reason="needs an NVIDIA GPU")
def test_a_cuda_tensor_arrives_on_cuda_and_shares_there() -> None:
    # In a process of its own: CUDA, once it is up in one, does not go away again.
    script = f"import {__name__} as tests; tests.share_on_cuda()"
    subprocess.run([sys.executable, "-c", script], cwd=CHECKOUT, check=True)


def share_on_cuda() -> None:
    tensor = torch.arange(100_000.0, device="cuda").reshape(100, 1000)
    one, two, part, empty = travel([tensor, tensor.t(), tensor[:, ::2], tensor[:0]])
    assert {one.device, two.device, part.device, empty.device} == {tensor.device}
    assert one.equal(tensor)
    assert part.equal(tensor[:, ::2])
    one.zero_()
    assert not two.any()


def test_a_cuda_tensor_arrives_on_the_cpu_where_there_is_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlinf_async._transports import tensors

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    memory = bytearray(torch.arange(10.0).numpy().tobytes())
    assert tensors._rebuild_region(memory, True).view(torch.float32).equal(torch.arange(10.0))
    assert tensors._rebuild_empty((0, 3), torch.bfloat16, True).device.type == "cpu"


# -- memory that stays where it is -------------------------------------------------------------------------------------


class Plain:
    """Neither builtin nor torch's."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def there_and_back(value: Any, writable: bool = True) -> tuple[Any, list[int]]:
    """With whatever is int64 and large left where it is; and where that was among the buffers."""
    encoded = codec.encode(value, keep=lambda obj: obj.dtype == torch.int64 and obj.nbytes >= 64 << 10)
    buffers: list[Any] = list(encoded.buffers)
    places = [place for place, buffer in enumerate(buffers) if isinstance(buffer, torch.Tensor)]
    rest = encoded.replace([buffer for buffer in buffers if isinstance(buffer, memoryview)])
    body = bytearray(rest.to_bytes()) if writable else rest.to_bytes()
    assert encoded.nbytes >= rest.nbytes + sum(buffers[place].nbytes for place in places)
    return codec.decode_among(body, [(place, buffers[place].clone()) for place in places]), places


@pytest.mark.parametrize("writable", [True, False])
def test_tensors_that_are_kept_are_rebuilt_of_what_has_come_by_another_way(writable: bool) -> None:
    kept, on_cpu = torch.arange(20_000), torch.rand(20_000)
    alone, places = there_and_back(kept, writable)
    assert torch.equal(alone, kept)
    assert places == [0]
    (cpu, one, small, turned), places = there_and_back(
        [on_cpu, kept, torch.arange(3), kept.view(100, 200).t()], writable
    )
    assert places == [1]
    assert torch.equal(cpu, on_cpu)
    assert torch.equal(one, kept)
    assert torch.equal(small, torch.arange(3))
    assert torch.equal(turned, kept.view(100, 200).t())
    assert turned.data_ptr() == one.data_ptr()
    held, places = there_and_back(Plain(kept))
    assert torch.equal(held.tensor, kept)
    assert places == [0]


def test_places_that_do_not_fit_are_an_error() -> None:
    encoded = codec.encode(torch.arange(20_000), keep=lambda obj: True)
    with pytest.raises(SerializationError, match="cannot be rebuilt"):
        codec.decode_among(encoded.replace([]).to_bytes(), [])


@pytest.mark.parametrize("deep", [True, False], ids=["deep", "long"])
def test_a_function_of_the_script_travels_by_value_where_a_short_look_does_not_meet_it(deep: bool) -> None:
    script = vars(sys.modules["__main__"])
    exec("def counted(): return 3", script)
    function = script["counted"]
    value = [torch.ones(2), [[[[function]]]]] if deep else [torch.ones(2), function, *range(70)]
    body = codec.encode(value).to_bytes()
    del script["counted"]  # another process has none
    found = codec.decode(body)
    assert (found[1][0][0][0][0] if deep else found[1])() == 3
