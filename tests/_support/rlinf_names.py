"""The public names of RLinf's scheduler (0.4) and of its weight syncers, which the porting guide has to tell about."""

from __future__ import annotations

from typing import Final

ROBOTS: Final = "DOSW1HWInfo DualFrankaHWInfo FrankaHWInfo GimArmHWInfo Turtle2HWInfo"

EXPORTS: Final = f"""
    {ROBOTS}
    AcceleratorUtil AcceleratorType HardwareInfo CollectiveGroupOptions Cluster ClusterConfig ComponentPlacement
    PlacementStrategy FlexiblePlacementStrategy NodePlacementStrategy PackedPlacementStrategy Worker WorkerAddress
    WorkerGroupFuncResult CommMapper split_channel_message build_send_plan build_send_key build_recv_plan
    build_route_channel_key decoupled_build_recv_plan get_batch_size get_group_world_size infer_batch_size split_batch
    merge_batches WorkerInfo Channel ChannelWorker WeightedItem Tracer
    HybridComponentPlacement ModelParallelComponentPlacement
    """
"""What ``rlinf.scheduler`` exports, and the two placements that its users import from elsewhere."""

MEMBERS: Final = {
    # classes and functions beside the exports, variables of a worker, keys of the configuration
    "": """
        WorkerMeta WorkerRank WorkerGroup WorkerGroupFunc
        AsyncWork AsyncFuncWork AsyncCollWork AsyncChannelWork AsyncChannelCommWork AsyncRayWork AsyncRouteWork
        Collective CollectiveGroup MultiChannelProcessGroup CollectiveGroupInfo LocalChannel
        RouteEntry DecoupledRouteEntry RoutePlan decoupled_build_send_plan validate_batch_size get_group_info
        DeviceLock DeviceLockManager PortLockManager Manager WorkerManager CollectiveManager NodeManager
        ClusterEnvVar PathEnvMergeMode parse_rank_config NodeInfo NodeGroupInfo Placement MultiNodeGroupResolver
        ModelParallelEvalComponentPlacement MultiAgentModelParallelComponentPlacement
        MultiAgentModelParallelEvalComponentPlacement PlacementMode RolloutSyncMode placement_mode_to_rollout_sync_mode
        Hardware HardwareResource HardwareConfig NodeHardwareConfig Accelerator
        FrankaConfig DualFrankaConfig GimArmConfig DOSW1HWConfig Turtle2Config
        CrossDCPair BandwidthGroup NetEmulationManager estimate_payload_size_bytes
        DistributedRayLogCollector ProfileConfig NsightConfig RocprofSysConfig batch_router
        GROUP_NAME WORKER_NAME MASTER_ADDR MASTER_PORT WORLD_SIZE RANK NODE_RANK CLUSTER_NODE_RANK
        LOCAL_ACCELERATOR_RANK NODE_LOCAL_RANK NODE_LOCAL_WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE RAY_ACTOR
        CLUSTER_NAMESPACE CATCH_SYSTEM_FAILURE VISIBLE_DEVICES ACCELERATOR_TYPE ACCELERATOR_MODEL ISOLATE_ACCELERATOR
        LOCAL_HARDWARE_RANKS NODE_GROUP_LABEL
        num_nodes component_placement node_groups label node_ranks env_configs python_interpreter_path env_vars hardware
        ignore_hardware hardware_type profiling tracer net_emulation auto_scheduler use_pre_process_policy
        use_wait_before_last_iter_policy enable output_file node_group placement type configs
        enabled symmetric crossdc_pairs src dst delay_ms bandwidth_groups members bandwidth_mbps NetEmulationConfig
        backend worker_groups steps output_dir options flags args env
        WeightSyncer BucketWeightSyncer PatchWeightSyncer iter_named_tensor_buckets collect_param_names_need_sync
        WeightPatch EmptyWeightPatch CompressedWeightPatch PatchBuilder CPUSnapshotPatchBuilder GPUSnapshotPatchBuilder
        PatchCompressor IdentityCompressor NVCompCompressor WeightPatchTransport compression
        as_coo_2d_view downscale_nonnegative_indices nvcomp_lz4 use_ring_sync nccl_max_ctas nccl_min_ctas
        total_buckets syncer_version ordered_keys original_shapes receiver_dtypes
        """,
    "Worker": """
        PID current_worker logger accelerator_type torch_platform torch_device_type __init__
        has_accelerator worker_address worker_info manager_proxy device_lock hardware_type hardware_infos
        _rank _world_size _logger _group_name _lock _cluster_node_rank _timer_metrics _manager_proxy
        global_accelerator_ids _local_rank _local_world_size _node_local_rank _node_local_world_size
        _local_accelerator_rank _accelerator_type _accelerator_model _master_address _master_port _node_group
        _isolate_gpu create_group send recv send_tensor recv_tensor broadcast send_to recv_from create_channel
        connect_channel get_name get_parent_rank acquire_free_port log_on_first_rank log_on_last_rank log_debug log_info
        log_warning log_error check_worker_alive worker_timer timer pop_execution_time pop_execution_times start_profile
        stop_profile
        """,
    "WorkerAddress": """
        root_group_name rank_path rank get_name get_parent_rank get_parent_address get_child_address from_name
        from_parent_name_rank
        """,
    "WorkerGroup": """
        launch execute_on from_group_name worker_cls_name worker_group_name worker_info_list _workers _close
        """,
    "WorkerGroupFuncResult": "wait async_wait done consume_duration consume_durations",
    "AsyncWork": "wait async_wait then done get_next_work get_last_work",
    "AsyncFuncWork": "time add_perf_time",
    "CollectiveGroupOptions": "is_empty_options",
    "Collective": "create_collective_group",
    "Channel": "create connect put put_nowait get get_nowait get_batch qsize empty full is_local",
    "ChannelWorker": """
        create_queue put_via_ray get_via_ray get_batch_via_ray peek_all maxsize ensure_key_replica get_memory_usage
        """,
    "CommMapper": "get_dst_ranks get_src_ranks build_channel_key decoupled_get_batch_size",
    "DeviceLock": "acquire release",
    "PortLockManager": "acquire",
    "DeviceLockManager": "acquire_devices release_devices",
    "Cluster": """
        num_nodes num_accelerators accelerator_ranks get_node_group get_node_info get_node_ip get_alive_nodes
        find_free_port has_initialized get_full_env_var_name get_sys_env_var allocate merge_worker_env_vars
        _merge_path_like_env_value get_path_env_merge_mode modify_profile_context get_profiling_env_vars_for_worker
        """,
    "ClusterEnvVar": """
        CATCH_FAILURE LOG_LEVEL TIMEOUT NODE_RANK COMM_NET_DEVICES EXT_MODULE NET_EMULATION PATH_ENV_MERGE_MODE
        CODE_WORKING_DIR
        """,
    "ClusterConfig": """
        from_dict_cfg get_node_labels_by_rank get_node_python_interpreter_path_by_rank get_node_hw_configs_by_rank
        """,
    "NodeInfo": "num_accelerators accelerator_type accelerator_model get_hw_resource_count",
    "NodeGroupInfo": """
        node_ranks hardware_resource_count local_hardware_ranks get_hardware_infos group_ranks_to_global_ranks
        get_node_by_hardware_rank get_local_hardware_rank get_node_env_vars get_node_python_interpreter_path
        """,
    "PlacementStrategy": "get_placement",
    "ComponentPlacement": "placement_mode components get_hardware_ranks get_world_size get_strategy",
    "MultiNodeGroupResolver": """
        hardware_resource_count hardware_types get_node_by_hardware_rank get_node_group get_local_hardware_rank
        get_hardware_type_for_rank get_node_group_label
        """,
    "ModelParallelComponentPlacement": """
        is_collocated is_disaggregated is_auto is_pipeline has_dedicated_inference has_dedicated_inference_for_role
        actor_dp_size actor_tp_size actor_pp_size actor_world_size critic_dp_size critic_tp_size critic_pp_size
        critic_world_size inference_dp_size inference_tp_size inference_pp_size inference_world_size
        critic_inference_dp_size critic_inference_tp_size critic_inference_pp_size critic_inference_world_size
        rollout_dp_size rollout_tp_size rollout_pp_size rollout_world_size _cluster_num_gpus _rollout_sync_mode
        """,
    "PlacementMode": "COLLOCATED DISAGGREGATED HYBRID AUTO",
    "Hardware": "HW_TYPE DEFAULT_HW_TYPE policy_registry register enumerate",
    "HardwareResource": "count",
    "NodeHardwareConfig": "register_hardware_config",
    "AcceleratorType": "NV_GPU AMD_GPU INTEL_GPU NPU NO_ACCEL MUSA_GPU KUNLUN_XPU",
    "AcceleratorUtil": """
        CCL_SUPPORT_LIST get_accelerator_type get_accelerator_env_var get_visible_devices get_ccl_backend
        get_ccl_socket_ifname_env_var get_torch_platform get_device_type get_accel_pg_options start_profiling
        stop_profiling profiling_range
        """,
    "NvidiaGPUManager": "get_egl_device_id",
    "RobotAutoConfig": "resolve",
    "Manager": "get_proxy sync_cluster_namespace get_runtime_env_vars",
    "WorkerManager": "register_worker get_worker_info",
    "CollectiveManager": """
        register_collective_group get_collective_group set_master_port_info get_master_port_info reset_master_port_info
        """,
    "NodeManager": "get_nodes",
    "Tracer": "trace_begin trace_end trace_span trace_func record finalize",
    "NetEmulationConfig": "from_cfg",
    "NetEmulationManager": "reserve reserve_broadcast",
    "DistributedRayLogCollector": "start stop register_worker",
    "WeightSyncer": """
        create comm_options init_sender init_receiver sync apply sender_initialized receiver_initialized
        """,
    "BucketWeightSyncer": "iter_buckets",
    "PatchWeightSyncer": "create_patch",
    "PatchBuilder": "delta_encode delta_decode",
    "ProfileConfig": "profiles_worker_group should_profile_step check",
    "NsightConfig": "to_cli_tokens",
}

SYNCERS: Final = """
    WeightSyncer BucketWeightSyncer PatchWeightSyncer iter_named_tensor_buckets collect_param_names_need_sync
    WeightPatch EmptyWeightPatch CompressedWeightPatch
    """
"""What users of RLinf's weight syncers import."""
