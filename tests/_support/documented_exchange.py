"""The communication example of the seed document, but for its imports and the device."""

from __future__ import annotations

import asyncio
from typing import Any

import torch

from rlinf_async import Worker

SEND_GROUP_NAME = "send_worker_group"
RECV_GROUP_NAME = "recv_worker_group"
DEVICE = "cuda" if torch.cuda.device_count() else "cpu"


class SendWorker(Worker):
    def __init__(self) -> None:
        super().__init__()

    def hello_recv(self) -> Any:
        msg = f"Hello from SendWorker Rank {self._rank}!"
        self.send(msg, dst_group_name=RECV_GROUP_NAME, dst_rank=self._rank)

        reply = self.recv(src_group_name=RECV_GROUP_NAME, src_rank=self._rank)

        dst_rank = (self._rank + 1) % self._world_size
        tensor = torch.ones(size=(1, 1), dtype=torch.float32, device=DEVICE)
        self.send(tensor, dst_group_name=RECV_GROUP_NAME, dst_rank=dst_rank)

        tensor_list = [torch.tensor(1.0, dtype=torch.float32, device=DEVICE) for _ in range(4)]
        self.send(tensor_list, dst_group_name=RECV_GROUP_NAME, dst_rank=dst_rank)

        tensor_dict = {
            "tensor1": torch.tensor(2.0, dtype=torch.float32, device=DEVICE),
            "tensor2": torch.tensor(3.0, dtype=torch.float32, device=DEVICE),
        }
        self.send(tensor_dict, dst_group_name=RECV_GROUP_NAME, dst_rank=dst_rank)

        tensor = torch.ones(size=(2, 1), dtype=torch.float32, device=DEVICE)
        self.send_tensor(tensor, dst_group_name=RECV_GROUP_NAME, dst_rank=dst_rank)
        return reply

    def hello_recv_async(self) -> None:
        dst_rank = (self._rank + 1) % self._world_size
        tensor = torch.ones(size=(3, 1), dtype=torch.float32, device=DEVICE)
        async_send_work = self.send(tensor, dst_group_name=RECV_GROUP_NAME, dst_rank=dst_rank, async_op=True)
        async_send_work.wait()

        async def send_tensor_async() -> None:
            dst_rank = (self._rank + 1) % self._world_size
            tensor = torch.ones(size=(4, 1), dtype=torch.float32, device=DEVICE)
            async_send_work = self.send(tensor, dst_group_name=RECV_GROUP_NAME, dst_rank=dst_rank, async_op=True)
            await async_send_work.async_wait()

        asyncio.run(send_tensor_async())


class RecvWorker(Worker):
    def __init__(self) -> None:
        super().__init__()

    def hello_recv(self) -> Any:
        msg = self.recv(src_group_name=SEND_GROUP_NAME, src_rank=self._rank)

        reply = f"Hello from RecvWorker Rank {self._rank}!"
        self.send(reply, dst_group_name=SEND_GROUP_NAME, dst_rank=self._rank)

        src_rank = (self._rank - 1) % self._world_size
        tensor = self.recv(src_group_name=SEND_GROUP_NAME, src_rank=src_rank)
        tensor_list = self.recv(src_group_name=SEND_GROUP_NAME, src_rank=src_rank)
        tensor_dict = self.recv(src_group_name=SEND_GROUP_NAME, src_rank=src_rank)

        in_place = torch.empty(size=(2, 1), dtype=torch.float32, device=DEVICE)
        self.recv_tensor(in_place, src_group_name=SEND_GROUP_NAME, src_rank=src_rank)
        return msg, tensor, tensor_list, tensor_dict, in_place

    def hello_recv_async(self) -> Any:
        src_rank = (self._rank - 1) % self._world_size
        async_recv_work = self.recv(src_group_name=SEND_GROUP_NAME, src_rank=src_rank, async_op=True)
        first = async_recv_work.wait()

        async def recv_tensor_async() -> Any:
            src_rank = (self._rank - 1) % self._world_size
            async_recv_work = self.recv(src_group_name=SEND_GROUP_NAME, src_rank=src_rank, async_op=True)
            return await async_recv_work.async_wait()

        return first, asyncio.run(recv_tensor_async())
