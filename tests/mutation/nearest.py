"""Tests nearest to each module: those with its name in the mirrored folder, and the lines of a table."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Final

NEAREST: Final = {
    "rlinf_async/_core/clock.py": "tests/test_deadlines.py",
    "rlinf_async/_core/closing.py": "tests/test_cluster.py",
    "rlinf_async/_core/codec.py": "tests/_core/test_exception_parts.py tests/_core/test_segment.py"
    " tests/_transports/test_tensors.py",
    "rlinf_async/_core/definitions.py": "tests/_core/test_codec.py tests/_core/test_main_module.py"
    " tests/test_script_definitions.py tests/test_scripts.py",
    "rlinf_async/_core/dialect.py": "tests/rlinf/test_under_rlinfs_names.py",
    "rlinf_async/_core/import_hook.py": "tests/rlinf/test_under_rlinfs_names.py",
    "rlinf_async/_core/encoded.py": "tests/_core/test_codec.py tests/test_messages.py",
    "rlinf_async/_core/failures.py": "tests/_core/test_exception_parts.py tests/_core/test_root_cause.py",
    "rlinf_async/_core/frames.py": "tests/test_bad_frames.py tests/_core/test_pending_calls.py",
    "rlinf_async/_core/framework_files.py": "tests/_core/test_exception_parts.py",
    "rlinf_async/_core/link_messages.py": "tests/_wire/test_link_healing.py",
    "rlinf_async/_core/payload.py": "tests/test_group.py",
    "rlinf_async/_core/pool.py": "tests/_transports/test_shared_memory.py",
    "rlinf_async/_core/process.py": "tests/_core/test_main_module.py tests/test_scripts.py",
    "rlinf_async/_core/resend.py": "tests/_wire/test_breaks.py",
    "rlinf_async/_core/script_objects.py": "tests/test_script_definitions.py tests/test_scripts.py",
    "rlinf_async/_core/segment.py": "tests/_core/test_pool.py tests/_transports/test_shared_memory.py",
    "rlinf_async/_core/surroundings.py": "tests/test_values.py tests/configuration/test_env_merge.py",
    "rlinf_async/_core/unpicklable.py": "tests/_core/test_codec.py",
    "rlinf_async/_core/worker_facts.py": "tests/test_worker_surface.py",
    "rlinf_async/_client/client.py": "tests/_core/test_pending_calls.py tests/test_failures.py",
    "rlinf_async/_client/direct_calls.py": "tests/test_open_calls.py",
    "rlinf_async/_client/emulated_links.py": "tests/test_emulated_links.py",
    "rlinf_async/_client/peer_activity.py": "tests/_inspection/test_needs_of_works.py",
    "rlinf_async/_client/loop_thread.py": "tests/test_work.py tests/test_forks.py",
    "rlinf_async/_client/name_lookup.py": "tests/channel/test_names.py",
    "rlinf_async/_client/tasks.py": "tests/_inspection/test_needs_of_works.py",
    "rlinf_async/_client/reply_handler.py": "tests/test_failures.py tests/test_group.py",
    "rlinf_async/engines": "tests/engines/test_conformance.py",
    "rlinf_async/_messaging": "tests/_messaging/test_mailbox.py tests/test_messages.py",
    "rlinf_async/_messaging/device_content.py": "tests/_messaging/test_device_messages.py",
    "rlinf_async/_messaging/exchange.py": "tests/_messaging/test_device_messages.py tests/test_collectives.py"
    " tests/test_exchange_faults.py",
    "rlinf_async/_messaging/group_rosters.py": "tests/_inspection/test_needs_of_works.py tests/test_restarts.py",
    "rlinf_async/_messaging/inbox.py": "tests/_messaging/test_device_messages.py tests/test_exchange_faults.py",
    "rlinf_async/_messaging/landing.py": "tests/_messaging/test_relay_lines.py tests/_messaging/test_relay_chain.py",
    "rlinf_async/_messaging/outbox.py": "tests/_messaging/test_device_messages.py tests/test_exchange_faults.py",
    "rlinf_async/_messaging/peers.py": "tests/test_restarts.py tests/test_exchange_faults.py"
    " tests/_messaging/test_device_messages.py",
    "rlinf_async/_messaging/relayed_broadcast.py": "tests/_messaging/test_relay.py"
    " tests/_messaging/test_relay_chain.py",
    "rlinf_async/_messaging/routes.py": "tests/test_routing.py tests/routing",
    "rlinf_async/_messaging/state": "",
    "rlinf_async/_messaging/state/flow_control.py": "tests/_messaging/test_mailbox.py",
    "rlinf_async/_messaging/state/message_facts.py": "tests/_messaging/state/test_matching.py"
    " tests/_messaging/test_message_content.py",
    "rlinf_async/_messaging/state/relay_plan.py": "tests/_messaging/state/test_relay_losses.py"
    " tests/_messaging/test_relay_chain.py",
    "rlinf_async/_group": "tests/simulation/test_sim_restarts.py tests/test_group.py",
    "rlinf_async/_group/each.py": "tests/test_group.py tests/test_unobserved_errors.py",
    "rlinf_async/_group/call_deadlines.py": "tests/test_call_timeout.py tests/_group/test_members.py",
    "rlinf_async/_group/failure_notices.py": "tests/test_unobserved_errors.py",
    "rlinf_async/_group/members.py": "tests/_group/test_failure_notices.py tests/simulation/test_sim_deaths.py"
    " tests/test_failures.py tests/test_restarts.py",
    "rlinf_async/_group/pool_calls.py": "tests/simulation/test_sim_pools.py tests/test_any_rank.py",
    "rlinf_async/_group/rank_pool.py": "tests/simulation/test_sim_pools.py",
    "rlinf_async/_group/restart_rounds.py": "tests/test_restarts.py",
    "rlinf_async/_group/substitutes.py": "tests/test_restarts_elsewhere.py",
    "rlinf_async/_group/wait_all.py": "tests/test_wait_all.py",
    "rlinf_async/_cluster": "tests/test_cluster.py",
    "rlinf_async/_cluster/launch.py": "tests/test_group.py",
    "rlinf_async/_cluster/launch_config.py": "tests/test_fail_fast.py tests/configuration/test_cluster_config.py",
    "rlinf_async/_cluster/node_infos.py": "tests/placement/test_simulated_clusters.py tests/test_nodes.py",
    "rlinf_async/_cluster/output.py": "tests/test_unobserved_errors.py tests/test_scripts.py",
    "rlinf_async/_cluster/own_nodes.py": "tests/test_scripts.py",
    "rlinf_async/_cluster/preload_names.py": "tests/test_preload.py",
    "rlinf_async/_cluster/supervision.py": "tests/simulation/test_sim_restarts.py tests/test_restarts.py"
    " tests/test_restarts_elsewhere.py",
    "rlinf_async/_cluster/sys_variables.py": "tests/test_values.py",
    "rlinf_async/_wire": "tests/_wire/test_unix.py",
    "rlinf_async/_wire/acknowledgements.py": "tests/_wire/test_daemon_link.py tests/_wire/test_link_healing.py",
    "rlinf_async/_wire/daemon_link.py": "tests/_wire/test_link_healing.py tests/_wire/test_peer_server.py",
    "rlinf_async/_wire/direct_sockets.py": "tests/_wire/test_breaks.py tests/_client/test_direct_calls.py",
    "rlinf_async/_wire/grpc.py": "tests/_wire/test_dial.py tests/_wire/test_daemon_link_ends.py",
    "rlinf_async/_wire/hello.py": "tests/_wire/test_link_healing.py tests/_wire/test_peer_server.py",
    "rlinf_async/_wire/listen_address.py": "tests/_wire/test_mesh.py",
    "rlinf_async/_wire/marked_lines.py": "tests/_wire/test_lifeline.py",
    "rlinf_async/_wire/node_config.py": "tests/_wire/test_mesh.py tests/test_bad_frames.py",
    "rlinf_async/_wire/owned_socket.py": "tests/_wire/test_breaks.py tests/_wire/reading",
    "rlinf_async/_wire/peer_server.py": "tests/_wire/test_daemon_link_ends.py tests/_wire/test_dial.py",
    "rlinf_async/_wire/reachable.py": "tests/_wire/test_dial.py",
    "rlinf_async/_wire/remote_exit.py": "tests/launcher/remote/test_prologue.py tests/launcher/remote/test_ssh.py",
    "rlinf_async/_wire/send_buffer.py": "tests/_wire/test_unix.py tests/_wire/test_breaks.py",
    "rlinf_async/_wire/unix.py": "tests/_client/test_client.py tests/_wire/test_breaks.py tests/_wire/reading",
    "rlinf_async/_wire/socket_writer.py": "tests/_wire/test_send_buffer.py tests/_wire/test_breaks.py",
    "rlinf_async/_wire/reading": "tests/_wire/reading",
    "rlinf_async/_wire/reading/idle_reader.py": "tests/_wire/reading tests/_wire/test_breaks.py",
    "launcher/daemon": "tests/launcher/daemon/test_daemon_faults.py tests/test_cluster.py tests/test_failures.py"
    " tests/test_nodes.py",
    "launcher/daemon/wait_descriptions.py": "tests/_inspection/test_activities_of_workers.py",
    "launcher/daemon/__main__.py": "tests/launcher/daemon/test_run_logs.py tests/test_cluster.py",
    "launcher/daemon/boot.py": "tests/launcher/test_job.py",
    "launcher/daemon/call_check.py": "tests/test_open_calls.py",
    "launcher/daemon/channel_replies.py": "tests/launcher/daemon/test_channels.py tests/channel/test_closing.py",
    "launcher/daemon/channels.py": "tests/channel/test_items.py tests/channel/test_closing.py",
    "launcher/daemon/experiences.py": "tests/experience/test_experiences.py",
    "launcher/daemon/sample_store.py": "tests/experience/test_durable.py",
    "launcher/daemon/name_service.py": "tests/channel/test_names.py tests/test_missing_names.py",
    "launcher/daemon/death_watch.py": "tests/launcher/daemon/test_messages.py tests/test_failures.py",
    "launcher/daemon/device_locks.py": "tests/test_locks.py",
    "launcher/daemon/endpoint.py": "tests/launcher/daemon/test_router.py tests/launcher/daemon/test_messages.py"
    " tests/launcher/daemon/test_inspected_processes.py",
    "launcher/daemon/exit_status.py": "tests/test_failures.py",
    "launcher/daemon/fork_server.py": "tests/launcher/daemon/test_templates.py tests/test_preload.py",
    "launcher/daemon/guardian.py": "tests/launcher/remote/test_sweep.py tests/test_scripts.py",
    "launcher/daemon/handlers.py": "tests/launcher/daemon/test_router.py tests/_core/test_operations.py",
    "launcher/daemon/leftovers.py": "tests/launcher/remote/test_sweep.py tests/launcher/daemon/test_cleanup.py",
    "launcher/daemon/membership.py": "tests/simulation/test_sim_deaths.py",
    "launcher/daemon/metrics_server.py": "tests/launcher/daemon/test_metrics_text.py tests/test_metrics.py",
    "launcher/daemon/network.py": "tests/test_nodes.py",
    "launcher/daemon/node.py": "tests/launcher/daemon/test_messages.py tests/test_bad_frames.py"
    " tests/launcher/test_port_range.py",
    "launcher/daemon/node_link.py": "tests/launcher/daemon/test_membership.py tests/_wire/test_link_healing.py",
    "launcher/daemon/node_metrics.py": "tests/experience/test_experiences.py",
    "launcher/daemon/operator_requests.py": "tests/launcher/control/test_attachment.py",
    "launcher/daemon/ports.py": "tests/launcher/test_port_range.py",
    "launcher/daemon/preloads.py": "tests/launcher/daemon/test_templates.py tests/test_preload.py",
    "launcher/daemon/probe_process.py": "tests/launcher/daemon/test_probes.py",
    "launcher/daemon/profiled_worker.py": "tests/test_profiling.py",
    "launcher/daemon/resources.py": "tests/test_locks.py",
    "launcher/daemon/routed_frames.py": "tests/launcher/daemon/test_messages.py tests/launcher/daemon/test_router.py",
    "launcher/daemon/router.py": "tests/launcher/daemon/test_messages.py",
    "launcher/daemon/run_metrics.py": "tests/test_metrics.py",
    "launcher/daemon/service.py": "tests/launcher/daemon/test_cleanup.py tests/_core/test_operations.py"
    " tests/launcher/daemon/test_messages.py tests/test_restarts.py",
    "launcher/daemon/sub_workers.py": "tests/test_sub_workers.py",
    "launcher/daemon/templates.py": "tests/test_preload.py",
    "launcher/daemon/trace_service.py": "tests/test_tracing.py",
    "rlinf_async/_recorder/state": "tests/_recorder",
    "rlinf_async/_recorder/state/span_log.py": "tests/launcher/daemon/test_span_tail.py tests/_trace/test_tracer.py",
    "rlinf_async/_channels/state": "tests/_channels tests/channel",
    "rlinf_async/_experience/state": "tests/_experience/state tests/experience",
    "rlinf_async/_inspection/state": "tests/_inspection/state tests/simulation/test_sim_verdicts.py tests/_inspection",
    "rlinf_async/_trace/state": "tests/_trace tests/test_tracing.py",
    "rlinf_async/weights/state": "tests/weights/state tests/weights/plane tests/weights/test_contract.py"
    " tests/weights/machine/test_machine.py",
    "rlinf_async/weights/plane": "tests/weights/plane tests/weights/test_contract.py"
    " tests/weights/test_sim_publish.py tests/weights/machine/test_machine.py tests/weights/test_publish.py",
    "rlinf_async/weights/waiting/conditions.py": "tests/weights/waiting/test_gate.py",
    "rlinf_async/weights/waiting/execution.py": "tests/weights/state/test_send_arguments.py",
    "rlinf_async/weights/waiting": "tests/weights/waiting tests/weights/plane tests/weights/test_contract.py"
    " tests/weights/test_blocking.py tests/weights/machine/test_machine.py",
    "launcher/daemon/worker_output.py": "tests/launcher/daemon/test_run_logs.py tests/test_full_disks.py",
    "launcher/daemon/worker_groups.py": "tests/launcher/daemon/test_worker_process.py tests/test_preload.py"
    " tests/launcher/daemon/test_group_spawns.py tests/launcher/daemon/test_daemon_faults.py tests/test_restarts.py",
    "launcher/daemon/worker_process.py": "tests/test_failures.py",
}
"""Tests of a module beside those with its name; the line of a folder is for each of its modules, and comes last."""


def nearest(module: str, checkout: Path) -> list[str]:
    """Return the paths of the module's nearest tests, the nearest first, and all of its folder's last."""
    path = PurePosixPath(module)
    folder = PurePosixPath("tests") / path.parent.as_posix().removeprefix("rlinf_async/")
    mirrored = sorted(
        each.relative_to(checkout).as_posix() for each in (checkout / folder).glob(f"test_{path.stem}*.py")
    )
    lines = f"{NEAREST.get(module, '')} {NEAREST.get(path.parent.as_posix(), '')}".split()
    whole = [folder.as_posix()] if (checkout / folder).is_dir() else []
    return list(dict.fromkeys(mirrored + lines + whole))
