// Package doctor says what a machine has of what training needs, and what to
// do about what it lacks: its memory and limits, libraries and GPUs, network
// adapters and the settings of NCCL and libfabric.
//
// It reads files, asks fi_info, and takes what others have found of the
// processor and of the GPUs (cuda.Report). It changes nothing, starts nothing
// on a device, and knows neither configurations nor models: whoever asks says
// what is needed. It judges no speed, and claims no path of data, such as from
// an adapter to a GPU's memory, that only a run can show.
package doctor
