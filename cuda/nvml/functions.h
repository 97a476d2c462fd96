// All functions of NVML that go-nvml v0.13.4-1 calls. A test of cmd/gofsdp names those that a newer one calls besides.
#ifndef GOFSDP_NVML_FUNCTIONS_H
#define GOFSDP_NVML_FUNCTIONS_H

#define FUNCTIONS(F) \
  F(nvmlComputeInstanceDestroy) F(nvmlComputeInstanceGetInfo) F(nvmlComputeInstanceGetInfo_v2) \
  F(nvmlDeviceClearAccountingPids) F(nvmlDeviceClearCpuAffinity) F(nvmlDeviceClearEccErrorCounts) \
  F(nvmlDeviceClearFieldValues) F(nvmlDeviceCreateGpuInstance) F(nvmlDeviceCreateGpuInstanceWithPlacement) \
  F(nvmlDeviceDiscoverGpus) F(nvmlDeviceFreezeNvLinkUtilizationCounter) F(nvmlDeviceGetAPIRestriction) \
  F(nvmlDeviceGetAccountingBufferSize) F(nvmlDeviceGetAccountingMode) F(nvmlDeviceGetAccountingPids) \
  F(nvmlDeviceGetAccountingStats) F(nvmlDeviceGetAccountingStats_v2) F(nvmlDeviceGetActiveVgpus) \
  F(nvmlDeviceGetAdaptiveClockInfoStatus) F(nvmlDeviceGetAdaptiveTgpModeInfo_v1) F(nvmlDeviceGetAddressingMode) \
  F(nvmlDeviceGetApplicationsClock) F(nvmlDeviceGetArchitecture) F(nvmlDeviceGetAttributes) \
  F(nvmlDeviceGetAttributes_v2) F(nvmlDeviceGetAutoBoostedClocksEnabled) F(nvmlDeviceGetBAR1MemoryInfo) \
  F(nvmlDeviceGetBBXTimeData_v1) F(nvmlDeviceGetBankRemapperStatus_v1) F(nvmlDeviceGetBoardId) \
  F(nvmlDeviceGetBoardPartNumber) F(nvmlDeviceGetBrand) F(nvmlDeviceGetBridgeChipInfo) F(nvmlDeviceGetBusType) \
  F(nvmlDeviceGetC2cModeInfoV) F(nvmlDeviceGetCapabilities) F(nvmlDeviceGetClkMonStatus) F(nvmlDeviceGetClock) \
  F(nvmlDeviceGetClockInfo) F(nvmlDeviceGetClockOffsets) F(nvmlDeviceGetComputeInstanceId) \
  F(nvmlDeviceGetComputeMode) F(nvmlDeviceGetComputeRunningProcesses) F(nvmlDeviceGetComputeRunningProcesses_v2) \
  F(nvmlDeviceGetComputeRunningProcesses_v3) F(nvmlDeviceGetConfComputeGpuAttestationReport) \
  F(nvmlDeviceGetConfComputeGpuCertificate) F(nvmlDeviceGetConfComputeMemSizeInfo) \
  F(nvmlDeviceGetConfComputeProtectedMemoryUsage) F(nvmlDeviceGetCoolerInfo) F(nvmlDeviceGetCount) \
  F(nvmlDeviceGetCount_v2) F(nvmlDeviceGetCpuAffinity) F(nvmlDeviceGetCpuAffinityWithinScope) \
  F(nvmlDeviceGetCreatableVgpus) F(nvmlDeviceGetCudaComputeCapability) F(nvmlDeviceGetCurrPcieLinkGeneration) \
  F(nvmlDeviceGetCurrPcieLinkWidth) F(nvmlDeviceGetCurrentClockFreqs) F(nvmlDeviceGetCurrentClocksEventReasons) \
  F(nvmlDeviceGetCurrentClocksThrottleReasons) F(nvmlDeviceGetDecoderUtilization) \
  F(nvmlDeviceGetDefaultApplicationsClock) F(nvmlDeviceGetDefaultEccMode) F(nvmlDeviceGetDetailedEccErrors) \
  F(nvmlDeviceGetDeviceHandleFromMigDeviceHandle) F(nvmlDeviceGetDisplayActive) F(nvmlDeviceGetDisplayMode) \
  F(nvmlDeviceGetDramEncryptionMode) F(nvmlDeviceGetDriverModel) F(nvmlDeviceGetDriverModel_v2) \
  F(nvmlDeviceGetDynamicPstatesInfo) F(nvmlDeviceGetEccMode) F(nvmlDeviceGetEncoderCapacity) \
  F(nvmlDeviceGetEncoderSessions) F(nvmlDeviceGetEncoderStats) F(nvmlDeviceGetEncoderUtilization) \
  F(nvmlDeviceGetEnforcedPowerLimit) F(nvmlDeviceGetFBCSessions) F(nvmlDeviceGetFBCStats) \
  F(nvmlDeviceGetFanControlPolicy_v2) F(nvmlDeviceGetFanSpeed) F(nvmlDeviceGetFanSpeedRPM) \
  F(nvmlDeviceGetFanSpeed_v2) F(nvmlDeviceGetFieldValues) F(nvmlDeviceGetGpcClkMinMaxVfOffset) \
  F(nvmlDeviceGetGpcClkVfOffset) F(nvmlDeviceGetGpuFabricInfo) F(nvmlDeviceGetGpuFabricInfoV) \
  F(nvmlDeviceGetGpuFabricInfo_v4) F(nvmlDeviceGetGpuInstanceById) F(nvmlDeviceGetGpuInstanceId) \
  F(nvmlDeviceGetGpuInstancePossiblePlacements) F(nvmlDeviceGetGpuInstancePossiblePlacements_v2) \
  F(nvmlDeviceGetGpuInstanceProfileInfo) F(nvmlDeviceGetGpuInstanceProfileInfoByIdV) \
  F(nvmlDeviceGetGpuInstanceProfileInfoV) F(nvmlDeviceGetGpuInstanceRemainingCapacity) F(nvmlDeviceGetGpuInstances) \
  F(nvmlDeviceGetGpuMaxPcieLinkGeneration) F(nvmlDeviceGetGpuOperationMode) \
  F(nvmlDeviceGetGraphicsRunningProcesses) F(nvmlDeviceGetGraphicsRunningProcesses_v2) \
  F(nvmlDeviceGetGraphicsRunningProcesses_v3) F(nvmlDeviceGetGridLicensableFeatures) \
  F(nvmlDeviceGetGridLicensableFeatures_v2) F(nvmlDeviceGetGridLicensableFeatures_v3) \
  F(nvmlDeviceGetGridLicensableFeatures_v4) F(nvmlDeviceGetGspFirmwareMode) F(nvmlDeviceGetGspFirmwareVersion) \
  F(nvmlDeviceGetHandleByIndex) F(nvmlDeviceGetHandleByIndex_v2) F(nvmlDeviceGetHandleByPciBusId) \
  F(nvmlDeviceGetHandleByPciBusId_v2) F(nvmlDeviceGetHandleBySerial) F(nvmlDeviceGetHandleByUUID) \
  F(nvmlDeviceGetHandleByUUIDV) F(nvmlDeviceGetHostVgpuMode) F(nvmlDeviceGetHostname_v1) F(nvmlDeviceGetIndex) \
  F(nvmlDeviceGetInforomConfigurationChecksum) F(nvmlDeviceGetInforomImageVersion) F(nvmlDeviceGetInforomVersion) \
  F(nvmlDeviceGetIrqNum) F(nvmlDeviceGetJpgUtilization) F(nvmlDeviceGetLastBBXFlushTime) \
  F(nvmlDeviceGetMPSComputeRunningProcesses) F(nvmlDeviceGetMPSComputeRunningProcesses_v2) \
  F(nvmlDeviceGetMPSComputeRunningProcesses_v3) F(nvmlDeviceGetMarginTemperature) F(nvmlDeviceGetMaxClockInfo) \
  F(nvmlDeviceGetMaxCustomerBoostClock) F(nvmlDeviceGetMaxMigDeviceCount) F(nvmlDeviceGetMaxPcieLinkGeneration) \
  F(nvmlDeviceGetMaxPcieLinkWidth) F(nvmlDeviceGetMemClkMinMaxVfOffset) F(nvmlDeviceGetMemClkVfOffset) \
  F(nvmlDeviceGetMemoryAffinity) F(nvmlDeviceGetMemoryBusWidth) F(nvmlDeviceGetMemoryErrorCounter) \
  F(nvmlDeviceGetMemoryInfo) F(nvmlDeviceGetMemoryInfo_v2) F(nvmlDeviceGetMemoryLimits_v1) \
  F(nvmlDeviceGetMigDeviceHandleByIndex) F(nvmlDeviceGetMigMode) F(nvmlDeviceGetMinMaxClockOfPState) \
  F(nvmlDeviceGetMinMaxFanSpeed) F(nvmlDeviceGetMinorNumber) F(nvmlDeviceGetModuleId) F(nvmlDeviceGetMultiGpuBoard) \
  F(nvmlDeviceGetName) F(nvmlDeviceGetNumFans) F(nvmlDeviceGetNumGpuCores) F(nvmlDeviceGetNumaNodeId) \
  F(nvmlDeviceGetNvLinkCapability) F(nvmlDeviceGetNvLinkErrorCounter) F(nvmlDeviceGetNvLinkInfo) \
  F(nvmlDeviceGetNvLinkRemoteDeviceType) F(nvmlDeviceGetNvLinkRemotePciInfo) F(nvmlDeviceGetNvLinkRemotePciInfo_v2) \
  F(nvmlDeviceGetNvLinkState) F(nvmlDeviceGetNvLinkTelemetrySamples_v1) F(nvmlDeviceGetNvLinkUtilizationControl) \
  F(nvmlDeviceGetNvLinkUtilizationCounter) F(nvmlDeviceGetNvLinkVersion) F(nvmlDeviceGetNvlinkBwMode) \
  F(nvmlDeviceGetNvlinkSupportedBwModes) F(nvmlDeviceGetOfaUtilization) F(nvmlDeviceGetP2PStatus) \
  F(nvmlDeviceGetPciInfo) F(nvmlDeviceGetPciInfoExt) F(nvmlDeviceGetPciInfo_v2) F(nvmlDeviceGetPciInfo_v3) \
  F(nvmlDeviceGetPcieLinkMaxSpeed) F(nvmlDeviceGetPcieReplayCounter) F(nvmlDeviceGetPcieSpeed) \
  F(nvmlDeviceGetPcieThroughput) F(nvmlDeviceGetPdi) F(nvmlDeviceGetPerformanceModes) \
  F(nvmlDeviceGetPerformanceState) F(nvmlDeviceGetPersistenceMode) F(nvmlDeviceGetPgpuMetadataString) \
  F(nvmlDeviceGetPlatformInfo) F(nvmlDeviceGetPowerManagementDefaultLimit) F(nvmlDeviceGetPowerManagementLimit) \
  F(nvmlDeviceGetPowerManagementLimitConstraints) F(nvmlDeviceGetPowerManagementMode) \
  F(nvmlDeviceGetPowerMizerMode_v1) F(nvmlDeviceGetPowerSource) F(nvmlDeviceGetPowerState) \
  F(nvmlDeviceGetPowerUsage) F(nvmlDeviceGetProcessUtilization) F(nvmlDeviceGetProcessesUtilizationInfo) \
  F(nvmlDeviceGetRemappedRows) F(nvmlDeviceGetRemappedRows_v2) F(nvmlDeviceGetRepairStatus) \
  F(nvmlDeviceGetRetiredPages) F(nvmlDeviceGetRetiredPagesPendingStatus) F(nvmlDeviceGetRetiredPages_v2) \
  F(nvmlDeviceGetRowRemapperHistogram) F(nvmlDeviceGetRunningProcessDetailList) F(nvmlDeviceGetSamples) \
  F(nvmlDeviceGetSerial) F(nvmlDeviceGetSramEccErrorStatus) F(nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts) \
  F(nvmlDeviceGetSupportedClocksEventReasons) F(nvmlDeviceGetSupportedClocksThrottleReasons) \
  F(nvmlDeviceGetSupportedEventTypes) F(nvmlDeviceGetSupportedGraphicsClocks) F(nvmlDeviceGetSupportedMemoryClocks) \
  F(nvmlDeviceGetSupportedPerformanceStates) F(nvmlDeviceGetSupportedVgpus) F(nvmlDeviceGetTargetFanSpeed) \
  F(nvmlDeviceGetTemperature) F(nvmlDeviceGetTemperatureThreshold) F(nvmlDeviceGetTemperatureV) \
  F(nvmlDeviceGetThermalSettings) F(nvmlDeviceGetTopologyCommonAncestor) F(nvmlDeviceGetTopologyNearestGpus) \
  F(nvmlDeviceGetTotalEccErrors) F(nvmlDeviceGetTotalEnergyConsumption) F(nvmlDeviceGetUUID) \
  F(nvmlDeviceGetUnrepairableMemoryFlag_v1) F(nvmlDeviceGetUtilizationRates) F(nvmlDeviceGetVbiosVersion) \
  F(nvmlDeviceGetVgpuCapabilities) F(nvmlDeviceGetVgpuHeterogeneousMode) \
  F(nvmlDeviceGetVgpuInstancesUtilizationInfo) F(nvmlDeviceGetVgpuMetadata) F(nvmlDeviceGetVgpuProcessUtilization) \
  F(nvmlDeviceGetVgpuProcessesUtilizationInfo) F(nvmlDeviceGetVgpuSchedulerCapabilities) \
  F(nvmlDeviceGetVgpuSchedulerLog) F(nvmlDeviceGetVgpuSchedulerLog_v2) F(nvmlDeviceGetVgpuSchedulerState) \
  F(nvmlDeviceGetVgpuSchedulerState_v2) F(nvmlDeviceGetVgpuTypeCreatablePlacements) \
  F(nvmlDeviceGetVgpuTypeSupportedPlacements) F(nvmlDeviceGetVgpuUtilization) F(nvmlDeviceGetViolationStatus) \
  F(nvmlDeviceGetVirtualizationMode) F(nvmlDeviceIsMigDeviceHandle) F(nvmlDeviceModifyDrainState) \
  F(nvmlDeviceOnSameBoard) F(nvmlDevicePerfMetricsGetSamples_v1) F(nvmlDevicePowerSmoothingActivatePresetProfile) \
  F(nvmlDevicePowerSmoothingSetState) F(nvmlDevicePowerSmoothingUpdatePresetProfileParam) \
  F(nvmlDeviceQueryDrainState) F(nvmlDeviceReadPRMCounters_v1) F(nvmlDeviceReadWritePRM_v1) \
  F(nvmlDeviceRegisterEvents) F(nvmlDeviceRemoveGpu) F(nvmlDeviceRemoveGpu_v2) F(nvmlDeviceResetApplicationsClocks) \
  F(nvmlDeviceResetGpuLockedClocks) F(nvmlDeviceResetMemoryLockedClocks) F(nvmlDeviceResetNvLinkErrorCounters) \
  F(nvmlDeviceResetNvLinkUtilizationCounter) F(nvmlDeviceSetAPIRestriction) F(nvmlDeviceSetAccountingMode) \
  F(nvmlDeviceSetAdaptiveTgpMode_v1) F(nvmlDeviceSetApplicationsClocks) F(nvmlDeviceSetAutoBoostedClocksEnabled) \
  F(nvmlDeviceSetClockOffsets) F(nvmlDeviceSetComputeMode) F(nvmlDeviceSetConfComputeUnprotectedMemSize) \
  F(nvmlDeviceSetCpuAffinity) F(nvmlDeviceSetDefaultAutoBoostedClocksEnabled) F(nvmlDeviceSetDefaultFanSpeed_v2) \
  F(nvmlDeviceSetDramEncryptionMode) F(nvmlDeviceSetDriverModel) F(nvmlDeviceSetEccMode) \
  F(nvmlDeviceSetFanControlPolicy) F(nvmlDeviceSetFanSpeed_v2) F(nvmlDeviceSetGpcClkVfOffset) \
  F(nvmlDeviceSetGpuLockedClocks) F(nvmlDeviceSetGpuOperationMode) F(nvmlDeviceSetHostname_v1) \
  F(nvmlDeviceSetMemClkVfOffset) F(nvmlDeviceSetMemoryLimits_v1) F(nvmlDeviceSetMemoryLockedClocks) \
  F(nvmlDeviceSetMigMode) F(nvmlDeviceSetNvLinkDeviceLowPowerThreshold) F(nvmlDeviceSetNvLinkUtilizationControl) \
  F(nvmlDeviceSetNvlinkBwMode) F(nvmlDeviceSetNvlinkBwModeAsync_v1) F(nvmlDeviceSetPersistenceMode) \
  F(nvmlDeviceSetPowerManagementLimit) F(nvmlDeviceSetPowerManagementLimit_v2) F(nvmlDeviceSetPowerMizerMode_v1) \
  F(nvmlDeviceSetRusdSettings_v1) F(nvmlDeviceSetTemperatureThreshold) F(nvmlDeviceSetVgpuCapabilities) \
  F(nvmlDeviceSetVgpuHeterogeneousMode) F(nvmlDeviceSetVgpuSchedulerState) F(nvmlDeviceSetVgpuSchedulerState_v2) \
  F(nvmlDeviceSetVirtualizationMode) F(nvmlDeviceValidateInforom) F(nvmlDeviceVgpuForceGspUnload) \
  F(nvmlDeviceWorkloadPowerProfileClearRequestedProfiles) F(nvmlDeviceWorkloadPowerProfileGetCurrentProfiles) \
  F(nvmlDeviceWorkloadPowerProfileGetProfilesInfo) F(nvmlDeviceWorkloadPowerProfileSetRequestedProfiles) \
  F(nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1) F(nvmlErrorString) F(nvmlEventSetCreate) F(nvmlEventSetFree) \
  F(nvmlEventSetGetContextCount_v1) F(nvmlEventSetGetContextData_v1) F(nvmlEventSetGetContextInfo_v1) \
  F(nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1) F(nvmlEventSetRegisterGpuOperationalEvents_v1) \
  F(nvmlEventSetWait) F(nvmlEventSetWait_v2) F(nvmlEventSetWait_v3) F(nvmlGetExcludedDeviceCount) \
  F(nvmlGetExcludedDeviceInfoByIndex) F(nvmlGetVgpuCompatibility) F(nvmlGetVgpuDriverCapabilities) \
  F(nvmlGetVgpuVersion) F(nvmlGpmMetricsGet) F(nvmlGpmMigSampleGet) F(nvmlGpmQueryDeviceSupport) \
  F(nvmlGpmQueryIfStreamingEnabled) F(nvmlGpmSampleAlloc) F(nvmlGpmSampleFree) F(nvmlGpmSampleGet) \
  F(nvmlGpmSetStreamingEnabled) F(nvmlGpuInstanceCreateComputeInstance) \
  F(nvmlGpuInstanceCreateComputeInstanceWithPlacement) F(nvmlGpuInstanceDestroy) F(nvmlGpuInstanceGetActiveVgpus) \
  F(nvmlGpuInstanceGetComputeInstanceById) F(nvmlGpuInstanceGetComputeInstancePossiblePlacements) \
  F(nvmlGpuInstanceGetComputeInstanceProfileInfo) F(nvmlGpuInstanceGetComputeInstanceProfileInfoV) \
  F(nvmlGpuInstanceGetComputeInstanceRemainingCapacity) F(nvmlGpuInstanceGetComputeInstances) \
  F(nvmlGpuInstanceGetCreatableVgpus) F(nvmlGpuInstanceGetInfo) F(nvmlGpuInstanceGetVgpuHeterogeneousMode) \
  F(nvmlGpuInstanceGetVgpuSchedulerLog) F(nvmlGpuInstanceGetVgpuSchedulerLog_v2) \
  F(nvmlGpuInstanceGetVgpuSchedulerState) F(nvmlGpuInstanceGetVgpuSchedulerState_v2) \
  F(nvmlGpuInstanceGetVgpuTypeCreatablePlacements) F(nvmlGpuInstanceSetVgpuHeterogeneousMode) \
  F(nvmlGpuInstanceSetVgpuSchedulerState) F(nvmlGpuInstanceSetVgpuSchedulerState_v2) F(nvmlInit) \
  F(nvmlInitWithFlags) F(nvmlInit_v2) F(nvmlSetVgpuVersion) F(nvmlShutdown) F(nvmlSystemEventSetCreate) \
  F(nvmlSystemEventSetFree) F(nvmlSystemEventSetWait) F(nvmlSystemGetCPER_v1) \
  F(nvmlSystemGetConfComputeCapabilities) F(nvmlSystemGetConfComputeGpusReadyState) \
  F(nvmlSystemGetConfComputeKeyRotationThresholdInfo) F(nvmlSystemGetConfComputeSettings) \
  F(nvmlSystemGetConfComputeState) F(nvmlSystemGetCudaDriverVersion) F(nvmlSystemGetCudaDriverVersion_v2) \
  F(nvmlSystemGetDriverBranch) F(nvmlSystemGetDriverVersion) F(nvmlSystemGetHicVersion) F(nvmlSystemGetNVMLVersion) \
  F(nvmlSystemGetNvlinkBwMode) F(nvmlSystemGetProcessName) F(nvmlSystemGetTopologyGpuSet) \
  F(nvmlSystemRegisterEvents) F(nvmlSystemSetConfComputeGpusReadyState) \
  F(nvmlSystemSetConfComputeKeyRotationThresholdInfo) F(nvmlSystemSetNvlinkBwMode) F(nvmlUnitGetCount) \
  F(nvmlUnitGetDevices) F(nvmlUnitGetFanSpeedInfo) F(nvmlUnitGetHandleByIndex) F(nvmlUnitGetLedState) \
  F(nvmlUnitGetPsuInfo) F(nvmlUnitGetTemperature) F(nvmlUnitGetUnitInfo) F(nvmlUnitSetLedState) \
  F(nvmlVgpuInstanceClearAccountingPids) F(nvmlVgpuInstanceGetAccountingMode) F(nvmlVgpuInstanceGetAccountingPids) \
  F(nvmlVgpuInstanceGetAccountingStats) F(nvmlVgpuInstanceGetEccMode) F(nvmlVgpuInstanceGetEncoderCapacity) \
  F(nvmlVgpuInstanceGetEncoderSessions) F(nvmlVgpuInstanceGetEncoderStats) F(nvmlVgpuInstanceGetFBCSessions) \
  F(nvmlVgpuInstanceGetFBCStats) F(nvmlVgpuInstanceGetFbUsage) F(nvmlVgpuInstanceGetFrameRateLimit) \
  F(nvmlVgpuInstanceGetGpuInstanceId) F(nvmlVgpuInstanceGetGpuPciId) F(nvmlVgpuInstanceGetLicenseInfo) \
  F(nvmlVgpuInstanceGetLicenseInfo_v2) F(nvmlVgpuInstanceGetLicenseStatus) F(nvmlVgpuInstanceGetMdevUUID) \
  F(nvmlVgpuInstanceGetMetadata) F(nvmlVgpuInstanceGetPlacementId) F(nvmlVgpuInstanceGetRuntimeStateSize) \
  F(nvmlVgpuInstanceGetType) F(nvmlVgpuInstanceGetUUID) F(nvmlVgpuInstanceGetVmDriverVersion) \
  F(nvmlVgpuInstanceGetVmID) F(nvmlVgpuInstanceSetEncoderCapacity) F(nvmlVgpuTypeGetBAR1Info) \
  F(nvmlVgpuTypeGetCapabilities) F(nvmlVgpuTypeGetClass) F(nvmlVgpuTypeGetDeviceID) F(nvmlVgpuTypeGetFbReservation) \
  F(nvmlVgpuTypeGetFrameRateLimit) F(nvmlVgpuTypeGetFramebufferSize) F(nvmlVgpuTypeGetGpuInstanceProfileId) \
  F(nvmlVgpuTypeGetGspHeapSize) F(nvmlVgpuTypeGetLicense) F(nvmlVgpuTypeGetMaxInstances) \
  F(nvmlVgpuTypeGetMaxInstancesPerGpuInstance) F(nvmlVgpuTypeGetMaxInstancesPerVm) F(nvmlVgpuTypeGetName) \
  F(nvmlVgpuTypeGetNumDisplayHeads) F(nvmlVgpuTypeGetResolution)

#endif
