/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the emulated libcuda.so.1 exports beside the CUDA driver API. Look the functions up with
 * dlsym: their absence tells a real driver from the emulated one. All are thread-safe.
 */
#ifndef MLA_EMU_H
#define MLA_EMU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Copies the report of the process's last faulty launch, or last refused image or launch ("" when
 * there was none), with its NUL into buffer, at most `size` bytes. Returns its full size with the
 * NUL. */
size_t mlaEmuLastReport(char* buffer, size_t size);

/* Forgets that report. */
void mlaEmuClearReport(void);

/* After a faulty launch every call on the device fails until the process ends, as with the real
 * driver. This makes the devices usable again (tests that provoke faults). */
void mlaEmuClearFault(void);

/* Launches executed to their end without a fault, in this process: of every kernel, and of the
 * kernels whose entry has this name. */
uint64_t mlaEmuKernelsExecuted(void);
uint64_t mlaEmuKernelExecutions(const char* entry);

/* Warp and lane instructions executed by all launches so far, and the host seconds they took. */
void mlaEmuStatistics(uint64_t* warp_instructions, uint64_t* lane_instructions, double* seconds);

/* What the checks found that MLA_EMU_CHECKS sets to warn, in all launches so far. */
uint64_t mlaEmuWarnings(void);

/* Seed of the next launch; each launch after it takes the next number. Starts as MLA_EMU_SEED. */
void mlaEmuSetSeed(uint64_t seed);
uint64_t mlaEmuNextSeed(void);

#ifdef __cplusplus
}
#endif

#endif
