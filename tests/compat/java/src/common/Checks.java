import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Objects;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.admin.Admin;

/** The checks of one suite: `ok SUITE.NAME` or `not ok SUITE.NAME: why` for each, then the counts. */
final class Checks {
    interface Body {
        void run() throws Exception;
    }

    static final int SECONDS_MAX = 120; // a check
    private static final int REACH_SECONDS_MAX = 6;
    private static final int WHY_CHARACTERS_MAX = 500;
    // Not System.out: tools that run in this process have that.
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);

    private final String suite;
    private int passed;
    private int failed;

    /** Ends the process at once if no broker answers there. */
    Checks(String suite, String bootstrap) {
        this.suite = suite;
        check("reached", () -> {
            try (Admin admin = Admin.create(settings(bootstrap,
                    "request.timeout.ms", REACH_SECONDS_MAX * 1000 / 2,
                    "default.api.timeout.ms", REACH_SECONDS_MAX * 1000))) {
                equal(1, admin.describeCluster().nodes().get().size());
            }
        });
        if (failed > 0) {
            end();
        }
    }

    void check(String name, Body body) {
        FutureTask<Void> task = new FutureTask<>((Callable<Void>) () -> {
            body.run();
            return null;
        });
        Thread thread = new Thread(task, name);
        thread.setDaemon(true);
        thread.start();
        Throwable why = null;
        try {
            task.get(SECONDS_MAX, TimeUnit.SECONDS);
        } catch (ExecutionException e) {
            why = e.getCause();
        } catch (TimeoutException | InterruptedException e) {
            why = new AssertionError("not done in " + SECONDS_MAX + " s");
        }
        String full = suite + "." + name;
        if (why == null) {
            passed++;
            say("ok " + full);
        } else {
            failed++;
            why.printStackTrace();
            String text = why.toString().replaceAll("\\s+", " ");
            say("not ok " + full + ": "
                + text.substring(0, Math.min(text.length(), WHY_CHARACTERS_MAX)));
        }
    }

    /** A line of its own, whatever half a line other threads have printed; in one write. */
    private static void say(String line) {
        OUT.print("\n" + line + "\n");
    }

    /** Prints the counts and ends the process, whatever threads are left. */
    void end() {
        say(passed + " passed, " + failed + " failed");
        System.err.flush();
        Runtime.getRuntime().halt(failed == 0 ? 0 : 1);
    }

    static Properties settings(String bootstrap, Object... pairs) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        for (int i = 0; i < pairs.length; i += 2) {
            properties.put(pairs[i], pairs[i + 1]);
        }
        return properties;
    }

    static void that(boolean holds, Object otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }

    static void equal(Object expected, Object seen) {
        that(Objects.equals(expected, seen), "expected " + expected + ", seen " + seen);
    }

    /** Of long lists, whose text would be cut before it says anything. */
    static void equalLists(List<?> expected, List<?> seen, String what) {
        int at = 0;
        while (at < Math.min(expected.size(), seen.size())
                && Objects.equals(expected.get(at), seen.get(at))) {
            at++;
        }
        that(at == Math.max(expected.size(), seen.size()), what + ": expected " + expected.size()
            + ", seen " + seen.size() + "; from " + at + ": expected "
            + expected.subList(at, Math.min(at + 5, expected.size())) + ", seen "
            + seen.subList(at, Math.min(at + 5, seen.size())));
    }

    static void has(String text, String part) {
        that(text.contains(part), "no \"" + part + "\" in: " + text);
    }

    /** What a call that must fail fails with; futures' wrapping is taken off. */
    static <E extends Throwable> E fails(Class<E> kind, Body body) throws Exception {
        try {
            body.run();
        } catch (Throwable e) {
            Throwable cause = e instanceof ExecutionException ? e.getCause() : e;
            that(kind.isInstance(cause), "expected " + kind.getSimpleName() + ", seen " + cause);
            return kind.cast(cause);
        }
        throw new AssertionError(kind.getSimpleName() + " did not come");
    }

    /** Asks again until it holds, as long as a check may take. */
    static void until(String what, Callable<Boolean> holds) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS_MAX * 2 / 3);
        while (!holds.call()) {
            that(System.nanoTime() < end, what + " did not come");
            Thread.sleep(20);
        }
    }
}
