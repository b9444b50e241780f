// SPDX-License-Identifier: Apache-2.0
//
// Machine code for api_probe.cc, in several targets.
extern "C" __global__ void k() {}
