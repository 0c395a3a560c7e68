/* Functions of the emulator for a library that queues work on emulated GPUs: the NCCL mock finds
 * them with dlsym (tests/comm/device/nccl_mock_gpu.c). */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

/* simt_queue_function - queue a host function that accesses device memory.
 *
 * Memory    release(argument) is called when the function can no longer run: when it has run, or
 *           when the graphs that contain it are destroyed */
void simt_queue_function(void *stream, void (*run)(void *argument), void *argument,
                         void (*release)(void *argument));

/* simt_get_capture - return a number for the capture of this stream, 0 if it is not captured. */
unsigned long simt_get_capture(const void *stream);

#ifdef __cplusplus
}
#endif
