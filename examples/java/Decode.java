// SPDX-License-Identifier: Apache-2.0
import com.sun.jna.Memory;
import com.sun.jna.Native;
import com.sun.jna.NativeLibrary;
import com.sun.jna.ptr.IntByReference;
import com.sun.jna.ptr.LongByReference;
import com.sun.jna.ptr.PointerByReference;
import java.util.Arrays;
import java.util.Random;

/**
 * One decode step of MLA attention from Java; every row is compared with the formula in double.
 *
 *   javac -cp jna.jar MlaAbi.java Decode.java
 *   java -cp jna.jar:. Decode path/to/libmla_loader.so path/to/bundle
 */
public final class Decode {
    static final int BATCH = 2, HEADS = 16, PAGE_SIZE = 32, PAGES = 9, MAX_PAGES = 5, DIM_K = 576, DIM_V = 512;
    static final int[] SEQ_LENS = {130, 7};
    static final int[] PAGE_TABLE = {6, 1, 3, 8, 2, 4, 0, 0, 0, 0};
    static final double SCALE = 1 / Math.sqrt(192); // DeepSeek's heads have 128 + 64 elements before absorption

    static NativeLibrary driver;
    static MlaAbi mla;

    static void cuda(String name, Object... arguments) {
        int result = driver.getFunction(name).invokeInt(arguments);
        if (result != 0) throw new IllegalStateException(name + " returned error " + result);
    }

    static void check(int status) {
        if (status != 0) throw new IllegalStateException(mla.mla_status_name(status) + ": " + mla.mla_last_error());
    }

    static void require(boolean condition, String otherwise) {
        if (!condition) throw new IllegalStateException(otherwise);
    }

    static long allocate(long bytes) {
        LongByReference address = new LongByReference();
        cuda("cuMemAlloc_v2", address, bytes);
        return address.getValue();
    }

    static long upload(Memory data) {
        long address = allocate(data.size());
        cuda("cuMemcpyHtoD_v2", address, data, data.size());
        return address;
    }

    static long upload(byte[] data) {
        Memory memory = new Memory(data.length);
        memory.write(0, data, 0, data.length);
        return upload(memory);
    }

    static long upload(int[] data) {
        Memory memory = new Memory(4L * data.length);
        memory.write(0, data, 0, data.length);
        return upload(memory);
    }

    static Memory download(long address, long bytes) {
        Memory memory = new Memory(bytes);
        cuda("cuMemcpyDtoH_v2", memory, address, bytes);
        return memory;
    }

    static double fromE4m3(byte code) {
        int exponent = code >> 3 & 15, mantissa = code & 7;
        double value = exponent > 0 ? Math.scalb(8.0 + mantissa, exponent - 10) : Math.scalb((double) mantissa, -9);
        return code < 0 ? -value : value;
    }

    static int tokenAt(int request, int i) {
        return (PAGE_TABLE[request * MAX_PAGES + i / PAGE_SIZE] * PAGE_SIZE + i % PAGE_SIZE) * DIM_K;
    }

    public static void main(String[] arguments) {
        MlaAbi.checkLayout();
        mla = Native.load(arguments[0], MlaAbi.class);
        String path = System.getenv("MLA_CUDA_DRIVER_PATH");
        driver = NativeLibrary.getInstance(path != null ? path : "libcuda.so.1");

        IntByReference device = new IntByReference(), major = new IntByReference(), minor = new IntByReference();
        PointerByReference context = new PointerByReference();
        cuda("cuInit", 0);
        cuda("cuDeviceGet", device, 0);
        cuda("cuDevicePrimaryCtxRetain", context, device.getValue());
        cuda("cuCtxSetCurrent", context.getValue());
        cuda("cuDeviceGetAttribute", major, 75, device.getValue());
        cuda("cuDeviceGetAttribute", minor, 76, device.getValue());

        Random random = new Random(1);
        byte[] q = new byte[BATCH * HEADS * DIM_K], kv = new byte[PAGES * PAGE_SIZE * DIM_K];
        for (int i = 0; i < q.length; ++i) q[i] = randomE4m3(random);
        Arrays.fill(kv, (byte) 0x7f); // NaN wherever no request looks
        for (int request = 0; request < BATCH; ++request)
            for (int i = 0; i < SEQ_LENS[request]; ++i)
                for (int d = 0; d < DIM_K; ++d) kv[tokenAt(request, i) + d] = randomE4m3(random);

        PointerByReference bundle = new PointerByReference(), kernel = new PointerByReference();
        check(mla.mla_bundle_open(arguments[1], null, bundle));
        MlaAbi.Problem problem = new MlaAbi.Problem();
        problem.heads = HEADS;
        problem.page_size = PAGE_SIZE;
        problem.cc_major = major.getValue();
        problem.cc_minor = minor.getValue();
        IntByReference index = new IntByReference();
        check(mla.mla_select(bundle.getValue(), problem, index));
        MlaAbi.KernelInfo info = new MlaAbi.KernelInfo();
        check(mla.mla_bundle_get_kernel(bundle.getValue(), index.getValue(), info));
        System.out.println("selected " + info.id.getString(0));
        check(mla.mla_prepare_index(bundle.getValue(), index.getValue(), null, kernel));
        LongByReference bytes = new LongByReference();
        check(mla.mla_workspace_bytes(bundle.getValue(), null, bytes));

        MlaAbi.LaunchArgs args = new MlaAbi.LaunchArgs();
        args.workspace_bytes = bytes.getValue();
        args.workspace = allocate(args.workspace_bytes);
        check(mla.mla_workspace_init(bundle.getValue(), args.workspace, args.workspace_bytes, null));
        args.q = upload(q);
        args.kv = upload(kv);
        args.page_table = upload(PAGE_TABLE);
        args.seq_lens = upload(SEQ_LENS);
        args.out = allocate(BATCH * HEADS * DIM_V * 2);
        args.lse = allocate(BATCH * HEADS * 4);
        args.pages = PAGES;
        args.batch = BATCH;
        args.heads = HEADS;
        args.page_size = PAGE_SIZE;
        args.max_pages_per_seq = MAX_PAGES;
        int status = mla.mla_launch(kernel.getValue(), args, null); // no softmax_scale yet
        require(status == MlaAbi.MLA_ERROR_INVALID_ARGUMENT && mla.mla_last_error().contains("softmax_scale"),
                "a launch without scale gave " + status + ": " + mla.mla_last_error());
        args.softmax_scale = (float) SCALE;
        check(mla.mla_launch(kernel.getValue(), args, null));
        cuda("cuCtxSynchronize");
        short[] out = download(args.out, BATCH * HEADS * DIM_V * 2).getShortArray(0, BATCH * HEADS * DIM_V);
        float[] lse = download(args.lse, BATCH * HEADS * 4).getFloatArray(0, BATCH * HEADS);
        check(mla.mla_bundle_close(bundle.getValue()));

        double worst = 0, worstLse = 0;
        for (int row = 0; row < BATCH * HEADS; ++row) {
            double total = 0, difference = 0, norm = 0;
            double[] want = new double[DIM_V];
            for (int i = 0; i < SEQ_LENS[row / HEADS]; ++i) {
                int at = tokenAt(row / HEADS, i);
                double score = 0;
                for (int d = 0; d < DIM_K; ++d) score += fromE4m3(q[row * DIM_K + d]) * fromE4m3(kv[at + d]);
                double weight = Math.exp(score * SCALE);
                total += weight;
                for (int d = 0; d < DIM_V; ++d) want[d] += weight * fromE4m3(kv[at + d]);
            }
            for (int d = 0; d < DIM_V; ++d) {
                float got = Float.intBitsToFloat(out[row * DIM_V + d] << 16); // bf16
                difference += Math.pow(got - want[d] / total, 2);
                norm += Math.pow(want[d] / total, 2);
            }
            double error = Math.sqrt(difference / norm), errorOfLse = Math.abs(lse[row] - Math.log(total));
            require(error < 0.04 && errorOfLse < 0.01, "row " + row + " is wrong"); // NaN is too
            worst = Math.max(worst, error);
            worstLse = Math.max(worstLse, errorOfLse);
        }
        System.out.printf("%d rows: relative error %.2e, lse %.2e%n", BATCH * HEADS, worst, worstLse);
    }

    static byte randomE4m3(Random random) { // magnitudes from 2^-3 to just below 2
        return (byte) (0x20 + random.nextInt(32) + 0x80 * random.nextInt(2));
    }
}
