package oracle;

import org.apache.kafka.common.record.internal.*;
import org.apache.kafka.storage.internals.log.*;

import java.io.*;
import java.nio.file.*;
import java.util.*;

/** Repeats: clone the source partition (log files hard-linked or copied), warm the page cache, open, one cleaning pass, time it. */
final class Bench {
    static void rm(File d) throws IOException {
        if (!d.exists()) return;
        try (var st = Files.walk(d.toPath())) { st.sorted(Comparator.reverseOrder()).forEach(p -> p.toFile().delete()); }
    }

    static void run(Env.Opts o) throws Exception {
        File src = new File(o.s("dir", null)).getAbsoluteFile();
        File work = new File(o.s("work", System.getProperty("java.io.tmpdir") + "/oracle-bench")).getAbsoluteFile();
        int iters = o.i("iters", 4);
        double unc = o.l("uncompressed-bytes", 0);
        boolean keep = o.b("keep", false);
        Env.FixedTime time = new Env.FixedTime(o.l("now", 1_700_000_000_000L));
        LogConfig cfg = Env.logConfig(o);
        for (String k : new String[] {"log-start-offset", "recovery-point", "max-txn-timeout-ms", "producer-expiration-ms", "clean-shutdown",
            "high-watermark", "first-dirty", "first-uncleanable", "respect-eligibility", "force", "write-checkpoint"}) o.s(k, null);
        Cleaner cleaner = Clean.newCleaner(o, time, cfg);
        o.done();
        byte[] buf = new byte[1 << 20];
        for (int it = 0; it < iters; it++) {
            rm(work);
            File dir = new File(work, src.getName());
            Files.createDirectories(dir.toPath());
            for (File f : src.listFiles()) {
                Path t = dir.toPath().resolve(f.getName());
                if (f.getName().endsWith(".log") && f.length() > 0) {
                    try { Files.createLink(t, f.toPath()); } catch (Exception e) { Files.copy(f.toPath(), t, StandardCopyOption.COPY_ATTRIBUTES); }
                    try (var in = new FileInputStream(t.toFile())) { while (in.read(buf) > 0) { } }
                } else Files.copy(f.toPath(), t, StandardCopyOption.COPY_ATTRIBUTES);
            }
            var j = Clean.once(dir, o, cleaner, cfg, time, true);
            double ms = (Double) j.get("total_ms_nano");
            double mapB = (Long) j.get("map_bytes_read"), rdB = (Long) j.get("bytes_read"), wr = (Long) j.get("bytes_written");
            double mapMs = (Long) j.get("map_ms"), clMs = (Long) j.get("clean_ms");
            var r = new LinkedHashMap<String, Object>();
            r.put("iter", it);
            r.put("total_ms", ms);
            r.put("cpu_ms", j.get("cleaner_thread_cpu_ms")); r.put("user_ms", j.get("cleaner_thread_user_ms"));
            r.put("map_ms", mapMs); r.put("clean_ms", clMs);
            r.put("log_MB", rdB / 1e6); r.put("written_MB", wr / 1e6);
            r.put("both_passes_MBps", Math.round((mapB + rdB) / ms / 10) / 100.0);
            r.put("log_MBps", Math.round(rdB / ms / 10) / 100.0);
            r.put("map_MBps", Math.round(mapB / mapMs / 10) / 100.0);
            r.put("clean_MBps", Math.round(rdB / clMs / 10) / 100.0);
            if (unc > 0) { r.put("uncompressed_log_MBps", Math.round(unc / ms / 10) / 100.0); r.put("uncompressed_both_MBps", Math.round(2 * unc / ms / 10) / 100.0); }
            r.put("krec_per_s", Math.round((Long) j.get("messages_read") / ms));
            r.put("messages_read", j.get("messages_read")); r.put("messages_written", j.get("messages_written"));
            r.put("util", j.get("buffer_utilization")); r.put("entries", j.get("map_entries")); r.put("first_dirty_after", j.get("first_dirty_after")); r.put("leo", j.get("log_end_offset"));
            System.out.println(Json.str(r));
            if (!keep || it < iters - 1) rm(work);
        }
    }
}
