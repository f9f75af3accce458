// The decisions of the swap-in kernel, on a processor: one block for each request.
#include "swap_in.cuh"

alignas(16) unsigned char shared[sizeof(Plan)];

extern "C" void swap_in(const SwapIn* a) {
  for (int row = 0; row < a->batch; ++row) {
    emulated::run_block(row, [&] {
      if (a->worth) {
        swap_in_kernel<true>(*a);
      } else {
        swap_in_kernel<false>(*a);
      }
    });
  }
}
