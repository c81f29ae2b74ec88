"""Rows of the fault matrix: what happens, what is promised, within how many seconds, and the tests that prove it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One fault.

    Attributes:
        key: such as "P1": P processes, N network, C calls and data, Q channels, R resources, S security, L launch.
        fault: what happens.
        promise: what the framework does then.
        bound: of the promise, in words, such as "1 s"; empty where it is not one of time.
        tests: node ids; all must pass.
    """

    key: str
    fault: str
    promise: str
    bound: str
    tests: tuple[str, ...]


ROWS = (
    # -- processes
    Row(
        "P1",
        "a worker is killed in the middle of a call",
        "its caller is told who died, how, and that the call had started; the other ranks still answer, and the group "
        "can be closed",
        "1 s",
        (
            "tests/test_failures.py::test_a_death_is_told_within_a_second_with_everything_that_is_known",
            "tests/test_nodes.py::test_a_death_on_another_node_is_told_within_a_second",
            "tests/test_failures.py::test_a_death_says_of_each_lost_call_whether_it_had_started",
            "tests/test_failures.py::test_closing_after_a_death_raises_nothing",
        ),
    ),
    Row(
        "P2",
        "a worker is killed while 98 calls are queued behind the one that runs",
        "the error of the running call says that it had started, that of each queued one that it had not, as the "
        "worker's journal has it",
        "",
        ("tests/test_failures.py::test_a_death_says_of_each_lost_call_whether_it_had_started",),
    ),
    Row(
        "P3",
        "a worker is killed between a result and its answer",
        "the error says that the call had finished and only its answer was lost",
        "",
        ("tests/test_failures.py::test_a_death_between_a_result_and_its_answer_says_that_the_call_had_finished",),
    ),
    Row(
        "P4",
        "a worker ends by a signal, by `os._exit(3)` or because its event loop is broken; a method calls `sys.exit`",
        "signal or exit code, last words and log are told; `sys.exit` is an error of that call, and the worker lives",
        "1 s",
        (
            "tests/test_failures.py::test_a_death_is_told_within_a_second_with_everything_that_is_known",
            "tests/test_failures.py::test_a_worker_that_breaks_its_own_loop_says_how",
            "tests/test_failures.py::test_what_would_end_a_process_is_an_error_and_the_worker_lives",
        ),
    ),
    Row(
        "P5",
        "a worker is stopped (SIGSTOP)",
        "it is not taken for dead: warnings, deadlines and `rlinf-ctl status` name it as stopped, and its calls are "
        "answered once it goes on",
        "status: 3 s",
        (
            "tests/test_long_waits.py::test_a_stopped_rank_is_named_with_what_it_was_in",
            "tests/test_call_timeout.py::test_a_stopped_rank_is_named",
            "tests/launcher/control/test_commands.py::test_status_is_immediate_despite_a_blocked_driver",
        ),
    ),
    Row(
        "P6",
        "a daemon is stopped (SIGSTOP)",
        "its node is lost once, when its lease is over, and nothing else; its guardian ends it with its workers then; "
        "until then an open call to workers beside it is answered all the same",
        "1.1 x lease + 2.5 s; 5 s",
        (
            "tests/test_stopped_daemons.py"
            "::test_a_daemon_that_is_stopped_for_longer_than_its_lease_ends_with_its_workers",
            "tests/_wire/test_daemon_link_ends.py::test_a_frozen_peer_is_lost_once_its_lease_is_over",
            "tests/test_failures.py::test_answers_do_not_need_the_daemon",
        ),
    ),
    Row(
        "P7",
        "a daemon is killed",
        "what waits for its node fails with NodeLost, the other nodes go on, and its workers end with all that they "
        "have started",
        "1 s; 5 s",
        (
            "tests/test_nodes.py::test_a_lost_node_fails_what_waits_for_it_and_leaves_the_rest",
            "tests/test_orphans.py::test_nothing_is_left_of_a_plain_script[daemon-calls]",
            "tests/test_orphans.py::test_nothing_is_left_of_nodes_on_this_machine[daemon-idle]",
            "tests/test_orphans.py::test_nothing_is_left_of_nodes_over_ssh[daemon-launching]",
        ),
    ),
    Row(
        "P8",
        "the guardian of a daemon is killed",
        "daemon and workers end with all that they have started, and the driver is told NodeLost",
        "5 s",
        (
            "tests/test_orphans.py::test_nothing_is_left_of_a_plain_script[guardian-idle]",
            "tests/test_orphans.py::test_nothing_is_left_of_nodes_on_this_machine[guardian-launching]",
            "tests/test_orphans.py::test_nothing_is_left_of_nodes_over_ssh[guardian-calls]",
        ),
    ),
    Row(
        "P9",
        "the driver's script is killed, while it launches, calls or is idle",
        "nothing of the run is left on any node, neither processes nor directories",
        "5 s",
        (
            "tests/test_orphans.py::test_nothing_is_left_of_a_plain_script[script-launching]",
            "tests/test_orphans.py::test_nothing_is_left_of_nodes_on_this_machine[script-calls]",
            "tests/test_orphans.py::test_nothing_is_left_of_nodes_over_ssh[script-idle]",
        ),
    ),
    Row(
        "P10",
        "the driver's script ends by an exception, by `sys.exit` or by a signal, and closes nothing",
        "its exit code is kept, and nothing of the run is left",
        "5 s",
        (
            "tests/test_orphans.py::test_the_scripts_exit_code_is_the_launchers",
            "tests/test_scripts.py::test_a_script_that_closes_nothing_keeps_its_exit_code_and_leaves_nothing",
        ),
    ),
    Row(
        "P11",
        "Ctrl-C once, during calls or the start; twice, at a script that ignores it",
        "once: an end in order; twice: everything is killed; exit code 130, and nothing is left",
        "5 s; 2 s",
        (
            "tests/test_orphans.py::test_ctrl_c_on_a_terminal_ends_the_run_in_order",
            "tests/test_orphans.py::test_a_signal_to_the_launcher_ends_the_run_in_order",
            "tests/test_orphans.py::test_a_second_signal_ends_at_once_a_script_that_ignores_the_first",
        ),
    ),
    Row(
        "P12",
        "the launcher gets SIGTERM or SIGHUP",
        "as for Ctrl-C: an end in order, exit code 130, and nothing is left",
        "5 s",
        (
            "tests/test_orphans.py::test_a_signal_to_the_launcher_ends_the_run_in_order",
            "tests/test_orphans.py::test_a_second_signal_ends_at_once_a_script_that_ignores_the_first",
        ),
    ),
    Row(
        "P13",
        "workers have children, some of them in sessions of their own",
        "they end with their worker, however it ends; where daemon and guardian are killed at one stroke, "
        "`rlinf-launch --sweep` ends them",
        "5 s",
        (
            "tests/test_orphans.py::test_a_dead_worker_is_told_to_an_idle_driver_and_takes_nobody_along",
            "tests/test_failures.py::test_what_a_dead_worker_left_behind_is_gone_with_it",
            "tests/test_orphans.py::test_a_sweep_ends_what_a_plain_script_has_left",
            "tests/test_orphans.py::test_a_sweep_ends_what_is_left_on_other_hosts",
        ),
    ),
    Row(
        "P14",
        "the kernel kills a worker for its memory",
        "the error says so, and does not where a worker was killed by hand at such a time",
        "",
        (
            "tests/launcher/daemon/test_oom.py::test_a_worker_killed_for_its_memory_is_out_of_memory",
            "tests/launcher/daemon/test_oom.py::test_a_worker_killed_by_hand_is_not_out_of_memory",
        ),
    ),
    Row(
        "P15",
        "a driver or worker forks, and the child uses what is its parent's",
        "the child gets ForkedProcessError, the parent is not affected, and its death is still seen",
        "child: 0.1 s",
        (
            "tests/test_forks.py::test_a_drivers_child_is_told_at_once_whose_things_it_uses",
            "tests/test_forks.py::test_a_workers_child_is_told_at_once_whose_things_it_uses",
            "tests/test_forks.py::test_a_dataloader_whose_dataset_reads_a_channel_says_why_it_cannot",
            "tests/_wire/test_lifeline.py"
            "::test_a_forked_child_does_not_keep_the_far_side_alive_when_its_parent_is_killed",
        ),
    ),
    Row(
        "P16",
        "a worker dies again and again, in its methods or its constructor",
        "it is started again, each time after twice the pause up to 10 s; with one death more than `max_restarts` in "
        "`restart_window` seconds it is lost, with its last deaths in one error",
        "",
        (
            "tests/test_restarts.py::test_a_crash_loop_ends_as_one_error_with_the_last_deaths",
            "tests/test_restarts.py::test_a_death_in_the_first_constructor_is_made_good_as_well",
            "tests/_group/test_restart_budget.py::test_each_restart_waits_twice_as_long_up_to_ten_seconds",
            "tests/_group/test_restart_budget.py::test_with_one_more_within_the_window_there_is_none",
        ),
    ),
    # -- network
    Row(
        "N1",
        "a node's cable is pulled for up to 10 s",
        "it costs time only: calls, messages, broadcasts, items and weights arrive, all but weights each once, and no "
        "node is lost",
        "",
        (
            "tests/test_healing_nodes.py::test_a_cable_that_is_pulled_for_seconds_costs_time_only",
            "tests/test_healing_nodes.py::test_a_network_that_is_away_for_up_to_ten_seconds_costs_time_only",
        ),
    ),
    Row(
        "N2",
        "a node is cut off for longer than its lease of 15 s",
        "it is lost once for everybody and ends itself; a link that was given up is not taken up again",
        "lost: 19 s; ended: 22.5 s",
        (
            "tests/test_healing_nodes.py"
            "::test_twenty_seconds_are_a_loss_after_fifteen_and_nothing_is_left_of_the_node_after_twenty_five",
            "tests/test_healing_nodes.py::test_a_node_that_is_cut_off_is_lost_once_for_everybody_and_ends_itself",
            "tests/_wire/test_link_healing.py"
            "::test_a_link_that_one_side_has_given_up_is_over_for_the_other_as_soon_as_it_asks",
        ),
    ),
    Row(
        "N3",
        "nothing comes to a node, or nothing from it: for less than its lease, and for longer",
        "for less it costs time only; for longer the node is lost once for everybody, and ends itself",
        "1.2 x lease + 1 s; 1.1 x lease + 6 s",
        (
            "tests/test_rough_networks.py"
            "::test_a_node_that_is_heard_and_hears_nothing_or_the_reverse_is_lost_once_and_ends_itself",
            "tests/_wire/test_link_healing.py::test_a_network_that_is_away_for_less_than_the_lease_costs_time_only",
        ),
    ),
    Row(
        "N4",
        "a host is gone without a word: its cable is pulled, and no connection ends",
        "what waits for it fails with NodeLost once the lease of 3 s is over",
        "6 s",
        (
            "tests/test_over_ssh.py::test_a_host_whose_cable_is_pulled_is_lost_and_told",
            "tests/test_healing_nodes.py::test_a_node_that_is_cut_off_is_lost_once_for_everybody_and_ends_itself",
        ),
    ),
    Row(
        "N5",
        "the network loses 5 % of its packets, or doubles 5 % and loses 1 %, or brings them out of order, for two "
        "minutes",
        "traffic of every kind arrives right, calls, messages and items each once, and no node is lost",
        "",
        (
            "tests/test_rough_networks.py::test_traffic_of_every_kind_arrives_once_over_a_rough_network",
            "tests/test_rough_networks.py::test_two_minutes_of_a_rough_network_are_no_death",
        ),
    ),
    Row(
        "N6",
        "each packet takes 100 ± 50 ms",
        "traffic of every kind arrives right, no node is lost, and a call of a group crosses once per node",
        "",
        (
            "tests/test_rough_networks.py::test_traffic_of_every_kind_arrives_once_over_a_rough_network",
            "tests/test_rough_networks.py::test_two_minutes_of_a_rough_network_are_no_death",
            "tests/test_nodes.py::test_a_group_call_crosses_the_network_once_per_node",
        ),
    ),
    Row(
        "N7",
        "a result of 10 MB fills a network of 1 Mbit/s for longer than a lease",
        "no node is lost, the result arrives, and small calls are answered meanwhile",
        "",
        (
            "tests/test_rough_networks.py"
            "::test_a_result_that_fills_a_thin_network_for_longer_than_a_lease_costs_no_node",
            "tests/test_rough_networks.py::test_ten_megabytes_at_a_megabit_a_second_cost_no_node",
        ),
    ),
    Row(
        "N8",
        "a connection is closed, shut down, reset or filled with garbage while both ends live",
        "calls run once and in order, messages and streams arrive whole",
        "",
        (
            "tests/test_broken_sockets.py::test_calls_outlive_their_socket_and_run_once_in_order",
            "tests/test_broken_sockets.py::test_messages_of_both_directions_outlive_many_breaks",
            "tests/test_broken_sockets.py::test_a_stream_outlives_its_socket",
            "tests/_wire/test_link_healing.py"
            "::test_connections_that_are_reset_under_traffic_lose_nothing_and_repeat_nothing",
        ),
    ),
    # -- calls and data
    Row(
        "C1",
        "a method raises an exception whose constructor does not take its `args`, or whose class the caller lacks",
        "the caller gets the exception itself; of a class that it lacks a RemoteError with type, text and traceback",
        "",
        (
            "tests/test_failures.py::test_an_exception_whose_constructor_takes_something_else_arrives_as_itself",
            "tests/_core/test_exception_parts.py::test_an_exception_is_the_same_whatever_its_constructor_takes",
            "tests/_core/test_exception_parts.py::test_a_class_or_attribute_that_is_not_here_costs_only_itself",
        ),
    ),
    Row(
        "C2",
        "an exception holds a lock, fails in `__reduce__` or `__str__`, has 10 MB of text or 10 000 causes",
        "it arrives all the same, less what cannot travel, which a note names; text is cut to 64 KiB, causes to 64",
        "",
        (
            "tests/_core/test_exception_parts.py::test_what_cannot_travel_is_named_and_the_rest_arrives",
            "tests/_core/test_failures.py::test_an_exception_whose_str_fails_is_told_without_it",
            "tests/_core/test_failures.py::test_a_message_of_ten_megabytes_is_cut_in_the_middle",
            "tests/_core/test_failures.py::test_a_chain_of_ten_thousand_causes_is_left_out",
        ),
    ),
    Row(
        "C3",
        "a method raises SystemExit, KeyboardInterrupt, GeneratorExit or CancelledError",
        "the caller gets a RemoteError; after the first two the worker is seen to live on",
        "",
        (
            "tests/test_failures.py::test_what_would_end_a_process_is_an_error_and_the_worker_lives",
            "tests/_core/test_failures.py::test_exits_and_cancellations_are_never_raised_as_themselves",
        ),
    ),
    Row(
        "C4",
        "an argument, result, message or item cannot be pickled",
        "SerializationError names the path inside the value; but for a result, it comes before anything is sent",
        "",
        (
            "tests/test_group.py::test_what_cannot_be_pickled_is_named_before_it_is_sent",
            "tests/test_group.py::test_a_result_that_cannot_be_pickled_is_named",
            "tests/test_exchange.py::test_what_cannot_be_sent_says_so_at_once",
            "tests/channel/test_items.py::test_what_cannot_travel_is_named_and_nothing_is_put",
        ),
    ),
    Row(
        "C5",
        "the receiver of a value lacks its module or class",
        "SerializationError names the module and the receiver's `sys.path`",
        "",
        (
            "tests/_core/test_codec.py::test_a_missing_module_is_named_with_the_path_where_it_was_looked_for",
            "tests/_core/test_codec.py::test_a_missing_class_is_named_with_its_module",
        ),
    ),
    Row(
        "C6",
        "values from no bytes at all to 64 MiB, on every way that messages take; 1 GiB through shared memory",
        "they arrive whole",
        "",
        (
            "tests/test_exchange.py::test_every_value_arrives_as_it_was_sent_in_coroutines",
            "tests/test_exchange.py::test_64_mib_both_ways_at_once",
            "tests/test_group.py::test_large_arguments_and_results_come_back_whole",
            "tests/test_exchange_faults.py::test_shared_memory_is_free_again_when_sender_and_receiver_are_killed",
        ),
    ),
    Row(
        "C7",
        "a call is cancelled, at a thousand random moments",
        "its coroutines are cancelled on every rank, a queued call never starts, and nothing stays open",
        "0.5 s",
        (
            "tests/test_failures.py::test_a_cancelled_call_is_cancelled_on_every_rank_within_half_a_second",
            "tests/test_failures.py::test_a_thousand_random_cancels_leave_nothing_open",
            "tests/test_failures.py::test_a_call_that_waits_in_the_queue_never_starts_once_cancelled",
            "tests/test_nodes.py::test_a_cancel_reaches_every_node",
        ),
    ),
    Row(
        "C8",
        "a call's deadline passes",
        "DeadlineExceeded says which ranks had not answered and what they do; a coroutine is cancelled, and the late "
        "answer of a `def` is dropped",
        "1.6 s after it",
        (
            "tests/test_call_timeout.py::test_a_coroutine_that_takes_too_long_is_cancelled_and_the_error_says_all",
            "tests/test_call_timeout.py::test_a_def_goes_on_and_its_late_answer_is_dropped",
        ),
    ),
    Row(
        "C9",
        "a worker takes no calls for a while, because a `def` blocks it or it is stopped",
        "1,000 calls to it queue, and run later in the order in which they were made; status says which call is open, "
        "and for how long",
        "",
        (
            "tests/test_group.py::test_a_thousand_calls_behind_one_that_blocks_run_in_their_order",
            "tests/_client/test_direct_calls.py::test_order_holds_where_the_direct_way_is_full",
            "tests/test_concurrent.py::test_one_that_is_not_marked_begins_after_the_def",
            "tests/launcher/control/test_commands.py::test_status_is_immediate_despite_a_blocked_driver",
        ),
    ),
    Row(
        "C10",
        "10,000 calls are made at once",
        "all are answered, and run in the order in which they were made",
        "",
        (
            "tests/test_group.py::test_ten_thousand_calls_at_once_are_all_answered_in_their_order",
            "tests/_client/test_direct_calls.py::test_calls_run_in_their_order_whichever_way_they_take",
            "tests/test_group.py::test_def_and_async_methods_run_in_the_order_of_their_calls",
        ),
    ),
    Row(
        "C12",
        "a send and its receive do not fit in shape, dtype or kind, or there is no such peer",
        "an error on both sides that says what differs, and what follows arrives; a missing peer is told by the "
        "deadline, with the groups that there are",
        "",
        (
            "tests/test_exchange.py::test_a_tensor_that_does_not_fit_is_an_error_on_both_sides_and_the_stream_goes_on",
            "tests/test_exchange.py::test_a_group_that_there_is_not_is_an_error_that_lists_those_that_there_are",
        ),
    ),
    Row(
        "C13",
        "a rank raises while others wait for it in a collective",
        "the caller has its error, the others are freed and told which rank failed and why; one that cannot be freed "
        "is killed after `RLINF_ABORT_GRACE_S`",
        "2 s",
        (
            "tests/test_failures.py::test_a_rank_that_raises_frees_the_caller_while_others_sit_in_a_collective",
            "tests/test_collectives.py::test_their_errors_are_torchs_and_name_who_failed_first_and_why",
            "tests/test_collectives.py::test_ranks_of_another_node_are_freed_and_told_too",
            "tests/test_collectives.py::test_a_rank_that_an_abort_does_not_free_is_killed_and_named",
        ),
    ),
    # -- channels
    Row(
        "Q1",
        "producers are faster than the consumer",
        "puts to a full channel wait, `put_nowait` raises QueueFull, and the daemon's memory stays below 1.2 times "
        "`max_bytes`",
        "",
        (
            "tests/channel/test_items.py::test_a_fast_producer_is_held_to_max_bytes",
            "tests/channel/test_items.py::test_a_full_key_holds_up_its_own_producers_only",
            "tests/channel/test_items.py::test_nowait_raises_what_asyncio_raises",
        ),
    ),
    Row(
        "Q2",
        "a consumer is killed with items whose `get` had not returned, or that a lease or a loop still held",
        "they go to the next consumer at their place, flagged as redelivered",
        "",
        (
            "tests/channel/test_ends.py::test_what_a_killed_consumer_had_not_taken_goes_to_the_next_at_its_place",
            "tests/channel/test_leases.py::test_a_killed_holder_has_what_it_confirmed_and_the_rest_goes_to_the_next",
            "tests/test_restarts.py::test_what_a_dead_consumer_held_goes_to_its_next_incarnation",
        ),
    ),
    Row(
        "Q3",
        "a consumer is killed right after `get` has returned, or its lease has ended well",
        "what it had is never delivered again, and the rest comes in order; with its node an item may be lost",
        "",
        (
            "tests/channel/test_leases.py::test_a_killed_loop_has_what_it_began_with_and_no_more",
            "tests/histories/test_channel_histories.py::test_thousands_of_items_survive_kills_and_cancels",
        ),
    ),
    Row(
        "Q4",
        "a producer is killed while it puts",
        "each item is there whole or not at all: those that were accepted stay, one that waits for room goes",
        "",
        (
            "tests/channel/test_ends.py::test_what_was_accepted_outlives_its_producer_and_what_waited_does_not",
            "tests/channel/test_puts.py::test_what_was_put_outlives_a_producer_that_is_killed_at_once",
            "tests/histories/test_channel_histories.py::test_thousands_of_items_survive_kills_and_cancels",
        ),
    ),
    Row(
        "Q5",
        "the network goes away while puts and their answers are under way, and what was said is said again",
        "each item is there once",
        "",
        (
            "tests/test_healing_nodes.py::test_a_cable_that_is_pulled_for_seconds_costs_time_only",
            "tests/_channels/state/test_queue.py::test_a_put_that_comes_twice_counts_once",
        ),
    ),
    Row(
        "Q6",
        "gets are cancelled at random moments, also when their item has come",
        "the item goes back to its place unless `get` has returned, and none is lost or comes twice",
        "",
        (
            "tests/channel/test_ends.py::test_an_item_whose_consumer_is_cancelled_before_it_resumes_goes_back",
            "tests/channel/test_ends.py::test_whoever_gives_up_leaves_the_item",
            "tests/histories/test_channel_histories.py::test_thousands_of_items_survive_kills_and_cancels",
        ),
    ),
    Row(
        "Q7",
        "the daemon that holds a channel is killed",
        "everybody who waits gets NodeLost with the number of gets and puts that waited, and the name can be used "
        "again",
        "2 s",
        ("tests/channel/test_ends.py::test_a_lost_node_fails_what_waits_for_its_channels_with_counts",),
    ),
    Row(
        "Q8",
        "the network between a channel and those who use it is away for up to 10 s",
        "puts and gets go on afterwards, and each item arrives once and in order",
        "",
        (
            "tests/test_healing_nodes.py::test_a_cable_that_is_pulled_for_seconds_costs_time_only",
            "tests/test_healing_nodes.py::test_a_network_that_is_away_for_up_to_ten_seconds_costs_time_only",
        ),
    ),
    Row(
        "Q9",
        "a consumer that gathers several items is cancelled or killed",
        "all of them go back to their places, and the next has them together",
        "",
        (
            "tests/channel/test_many.py::test_what_a_killed_consumer_was_about_to_have_goes_to_the_next",
            "tests/channel/test_many.py::test_who_is_cancelled_while_it_gathers_leaves_everything_at_its_place",
            "tests/channel/test_many.py::test_who_is_cancelled_before_it_resumes_leaves_everything_at_its_place",
            "tests/_channels/state/test_queue.py::test_a_cancelled_batch_gives_back_what_it_had_gathered_unflagged",
        ),
    ),
    # -- experiences
    Row(
        "E1",
        "every process of a run with a durable experience is killed, in the middle of puts and takes",
        "the next run has what was accepted and not taken, what was leased is back, and nothing comes twice",
        "",
        ("tests/experience/test_durable.py::test_what_killed_runs_had_accepted_is_there_and_nothing_is_taken_twice",),
    ),
    Row(
        "E2",
        "a trainer is killed while it has groups of a take",
        "it keeps those that it has confirmed, and the rest goes to the next take",
        "",
        (
            "tests/experience/test_experiences.py::test_a_killed_trainer_has_what_it_confirmed_and_the_rest_goes_to_the_next",
        ),
    ),
    Row(
        "E3",
        "the disk of a durable experience is full",
        "the put raises OSError, and the experience goes on with what it has",
        "",
        ("tests/experience/test_durable.py::test_a_full_disk_is_an_error_of_the_put_and_ends_nothing",),
    ),
    # -- resources
    Row(
        "R1",
        "there is no more shared memory",
        "messages go another way with one warning; where the kernel refuses memory, MemoryError says how much was "
        "wanted",
        "",
        (
            "tests/_transports/test_shared_memory.py::test_over_the_budget_messages_go_another_way_and_it_is_said_once",
            "tests/test_exchange.py::test_each_way_is_really_taken",
            "tests/_core/test_segment.py::test_no_memory_is_a_memory_error_that_says_how_much",
        ),
    ),
    Row(
        "R2",
        "the disk of the logs is full",
        "the workers go on, and the error of a death says how much of its output is in the log",
        "",
        (
            "tests/test_full_disks.py"
            "::test_a_full_disk_stops_no_worker_and_its_death_says_how_much_of_the_log_is_there",
            "tests/test_full_disks.py::test_a_disk_without_room_for_a_file_stops_no_worker",
        ),
    ),
    Row(
        "R3",
        "there are too few file descriptors, for a launch or in a run",
        "a launch fails with an error that names limit, need and fix; a worker gets its large arguments, and a daemon "
        "loses no items",
        "",
        (
            "tests/_core/test_descriptors.py::test_a_launch_without_descriptors_names_host_limit_need_and_fix",
            "tests/test_broken_sockets.py::test_a_worker_without_descriptors_gets_large_arguments",
            "tests/channel/test_ends.py::test_a_daemon_at_its_limit_of_open_files_says_so_and_loses_nothing",
            "tests/launcher/daemon/test_admission.py::test_a_daemon_without_descriptors_does_not_spin_and_goes_on",
        ),
    ),
    # -- security
    Row(
        "S1",
        "garbage comes to every listening port and socket of a run",
        "it ends its own connection only: nothing of it is unpickled, no descriptor is kept, and the run answers",
        "",
        (
            "tests/test_security.py::test_strangers_get_nowhere_at_a_cluster_of_this_process",
            "tests/test_bad_frames.py::test_nonsense_from_a_driver_harms_nobody_else",
            "tests/test_bad_frames.py::test_a_frame_that_makes_no_sense_ends_its_connection_only",
            "tests/test_bad_frames.py::test_a_descriptor_that_holds_no_body_ends_its_connection_only",
        ),
    ),
    Row(
        "S2",
        "a client comes without a certificate, with one of another run, an expired one or one of another node",
        "it is refused before any handler runs, and AuthError says why",
        "",
        (
            "tests/_wire/test_peer_server.py"
            "::test_a_client_with_the_wrong_certificate_learns_why_and_the_server_hears_nothing",
            "tests/_wire/test_peer_server.py::test_without_a_certificate_nobody_gets_as_far_as_a_handler",
            "tests/_wire/test_peer_server.py::test_a_node_cannot_call_itself_another",
            "tests/test_security.py::test_strangers_get_nowhere_at_a_cluster_of_this_process",
        ),
    ),
    Row(
        "S3",
        "a worker sends answers, deaths, losses or cancels in the name of another rank or of a daemon; a subprocess "
        "wants to be one of another worker",
        "it is not believed",
        "",
        (
            "tests/test_bad_frames.py::test_a_frame_in_the_name_of_another_is_not_believed",
            "tests/test_bad_frames.py::test_a_rank_answers_for_itself_only",
            "tests/test_bad_frames.py::test_a_rank_answers_for_itself_only_on_its_own_socket_to_the_caller",
            "tests/test_sub_workers.py::test_a_subprocess_cannot_be_who_it_is_not",
        ),
    ),
    Row(
        "S4",
        "somebody who is not of the run speaks to a daemon's UNIX socket",
        "another user is refused, and logged, even where the directory lies open, and so is a process that no worker "
        "has started and that wants to be one",
        "",
        (
            "tests/test_security.py::test_another_user_cannot_connect",
            "tests/test_security.py::test_another_user_is_refused_even_where_the_directory_lies_open",
            "tests/test_sub_workers.py::test_a_process_that_no_worker_has_started_is_refused",
            "tests/test_bad_frames.py::test_whoever_does_not_say_hello_first_is_not_heard",
        ),
    ),
    Row(
        "S5",
        "a stranger sends pickles that run code",
        "they are never unpickled; a daemon unpickles nothing at all, not even what its own run sends",
        "",
        (
            "tests/test_security.py::test_a_daemon_never_unpickles",
            "tests/test_security.py::test_strangers_get_nowhere_at_a_cluster_of_this_process",
            "tests/test_security.py::test_another_user_is_refused_even_where_the_directory_lies_open",
            "tests/_wire/test_peer_server.py::test_a_bad_hello_is_refused_in_words_that_both_sides_see",
        ),
    ),
    Row(
        "S6",
        "msgpack comes that is nested deeply, promises 2**32 - 1 elements or has extension types",
        "it is refused",
        "",
        (
            "tests/_core/test_frames.py::test_a_length_that_promises_memory_is_refused_without_it",
            "tests/_core/test_frames.py::test_extension_types_are_refused",
            "tests/_core/test_frames.py::test_random_bytes_end_in_frames_or_a_frame_error",
            "tests/test_bad_frames.py::test_a_question_that_cannot_be_answered_harms_nobody",
        ),
    ),
    Row(
        "S7",
        "many connect and say nothing, before TLS or after it",
        "few of them stay, the oldest end first, each ends with its greeting timeout, and who says hello is served",
        "",
        (
            "tests/_wire/test_peer_server.py::test_silent_connections_are_few_and_have_a_deadline",
            "tests/_wire/test_peer_server.py::test_a_silent_peer_is_shown_the_door",
            "tests/launcher/daemon/test_admission.py::test_the_oldest_silent_connections_are_evicted_first",
            "tests/launcher/daemon/test_admission.py::test_whoever_says_hello_stays_however_many_are_silent",
        ),
    ),
    Row(
        "S8",
        "another user of the machine tries to connect to a daemon",
        "the directory of the socket is closed to it, and the daemon refuses it",
        "",
        (
            "tests/test_security.py::test_another_user_cannot_connect",
            "tests/test_security.py::test_another_user_is_refused_even_where_the_directory_lies_open",
        ),
    ),
    Row(
        "S9",
        "somebody looks for secrets in command lines, environments, output, logs and run directories",
        "there are none, nor in the `repr` of credentials",
        "",
        (
            "tests/test_security.py::test_no_secret_of_a_cluster_lies_about",
            "tests/test_security.py::test_strangers_get_nowhere_and_no_secret_lies_about_under_the_launcher",
            "tests/_wire/test_credentials.py::test_no_way_of_showing_credentials_shows_the_key",
            "tests/_wire/test_credentials.py::test_the_diagnosis_writes_no_key_to_a_disk",
        ),
    ),
    Row(
        "S10",
        "the listening sockets of every process of a run are listed",
        "none listens on every interface, those of torch and gloo included",
        "",
        (
            "tests/test_security.py::test_strangers_get_nowhere_at_a_cluster_of_this_process",
            "tests/test_security.py::test_strangers_get_nowhere_and_no_secret_lies_about_under_the_launcher",
            "tests/test_group.py::test_the_seed_example_all_reduces_over_gloo",
            "tests/_wire/test_dial.py::test_it_refuses_to_listen_on_every_interface_or_on_a_name",
        ),
    ),
    Row(
        "S11",
        "ssh meets an unknown or changed host key, a host named like an option, or 20 MB of noise in front of what is "
        "said",
        "keys and names are refused with the cause; the noise is passed over, and not kept",
        "",
        (
            "tests/launcher/test_over_ssh.py::test_keys_that_are_unknown_or_changed_are_refused",
            "tests/launcher/remote/test_ssh.py::test_a_host_resembling_an_option_or_command_is_refused",
            "tests/_wire/test_lifeline.py::test_noise_without_end_is_survived_without_being_kept",
            "tests/_wire/test_lifeline.py::test_only_marked_lines_are_messages",
        ),
    ),
    # -- launch
    Row(
        "L1",
        "some of several hosts cannot be reached or started",
        "one error lists every host that failed with its cause, and nothing is left on the others",
        "15 s",
        (
            "tests/launcher/test_over_ssh.py::test_one_unreachable_and_one_without_the_package_among_four",
            "tests/launcher/test_job.py::test_every_failed_host_is_listed_and_the_others_stopped",
            "tests/launcher/test_job.py::test_a_silent_host_is_named_within_the_start_timeout",
        ),
    ),
    Row(
        "L2",
        "a host's Python is missing, too old, not to be executed or of another version, or lacks packages",
        "a cause per host, with the path that was tried",
        "",
        (
            "tests/launcher/test_over_ssh.py::test_one_unreachable_and_one_without_the_package_among_four",
            "tests/launcher/remote/test_ssh.py::test_a_missing_python_is_named_with_its_path",
            "tests/launcher/remote/test_preflight.py::test_a_python_that_is_too_old_is_asked_nothing_else",
            "tests/launcher/remote/test_host_check.py::test_a_python_of_another_kind_is_named_on_both_sides",
        ),
    ),
    Row(
        "L3",
        "a host is listed twice, or one machine under two names",
        "an error that says which",
        "",
        (
            "tests/launcher/test_job.py::test_a_machine_under_two_names_is_found_out",
            "tests/launcher/remote/test_host_check.py::test_one_machine_under_two_names_is_detected",
            "tests/launcher/cli/test_hosts_file.py::test_a_host_listed_twice_is_an_error_with_both_lines",
        ),
    ),
    Row(
        "L4",
        "a group is launched under a name that is taken",
        "the launch is an error, also where another process has taken it; the first group goes on, and the name is "
        "free again when that ends",
        "",
        (
            "tests/test_group.py::test_a_duplicate_name_is_an_error_at_once_and_harms_nobody",
            "tests/test_group.py::test_a_duplicate_name_of_another_process_is_an_error",
            "tests/test_group.py::test_a_name_is_free_again_when_its_group_ends",
        ),
    ),
    Row(
        "L5",
        "two runs of one user are on the same hosts",
        "their groups of the same name do not meet, and a sweep of one leaves processes of another alone",
        "",
        (
            "tests/test_embedding.py::test_two_clusters_live_in_one_loop",
            "tests/launcher/cli/test_main.py::test_sweep_ends_what_bears_the_runs_id_and_nothing_else",
            "tests/launcher/test_over_slurm.py::test_two_jobs_on_the_same_nodes_do_not_meet",
        ),
    ),
)
